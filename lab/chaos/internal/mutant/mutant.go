// Package mutant makes programs with a deliberate mistake in them, to see whether the checker finds it (I14). A
// mutant is a few edits to the source, which only the compiler sees: by an overlay the mutated text takes the place
// of the file. Nothing of it is in the product, and every line of the product can be mutated, SQL included.
package mutant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Mutant is one deliberate mistake.
type Mutant struct {
	// Name is how it is called, and Layer the part of the product that makes the mistake.
	Name, Layer string
	// Mistake says what is wrong, in a few words.
	Mistake string
	// Store is the one to run on.
	Store string
	// Breaks are the invariants that it breaks: one of them has to be found.
	Breaks []string
	// Test has to find it instead of a run, if a run seldom or never can: a package and the name of a test in it, which
	// names the rule that is broken. Default: none.
	Test Test
	// Edits make the mistake.
	Edits []Edit
	// Faults are those that let it show soonest. Default: all.
	Faults []string
	// Quiet says that it shows only when all is quiet: what is missing then is missing for good.
	Quiet bool
}

// Test is one of the tests of the repository.
type Test struct{ Package, Name string }

// Edit replaces a text that occurs once in a file.
type Edit struct {
	// File is a path below the root of the module.
	File     string
	Old, New string
}

// Named returns the mutants of these names, or all if there are none.
func Named(names ...string) ([]Mutant, error) {
	if len(names) == 0 {
		return All, nil
	}
	var found []Mutant
	for _, name := range names {
		i := slices.IndexFunc(All, func(m Mutant) bool { return m.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no mutant %q", name)
		}
		found = append(found, All[i])
	}
	return found, nil
}

// Build builds the package with the mistake and returns the path of the program, which lies in dir.
func (m *Mutant) Build(ctx context.Context, dir, source string) (program string, err error) {
	root, err := repositoryRoot(ctx)
	if err != nil {
		return "", err
	}
	overlay, err := m.overlay(root, dir)
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, m.Name)
	out, err := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", program, source).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mutant %s does not build: %w: %s", m.Name, err, out)
	}
	return program, nil
}

// RunTest runs the test of a mutant that has one, with the mistake, and returns what it said. A test that passes, or
// could not be run, has said nothing that gives the mutant away.
func (m *Mutant) RunTest(ctx context.Context, dir string) (said string, err error) {
	root, err := repositoryRoot(ctx)
	if err != nil {
		return "", err
	}
	overlay, err := m.overlay(root, dir)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-overlay", overlay,
		"-run", "^"+m.Test.Name+"$", m.Test.Package)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = nil
	}
	return string(out), err
}

// repositoryRoot returns the directory of go.work, because a mutant may change any module.
func repositoryRoot(ctx context.Context) (string, error) {
	file, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOWORK: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(file))), nil
}

// overlay writes the mutated files and the list of them that the compiler reads, and returns the path of the list.
func (m *Mutant) overlay(root, dir string) (string, error) {
	mutated, err := m.mutate(func(file string) (string, error) {
		text, err := os.ReadFile(filepath.Join(root, file))
		return string(text), err
	})
	if err != nil {
		return "", err
	}
	replace := make(map[string]string, len(mutated))
	for file, text := range mutated {
		path := filepath.Join(dir, fmt.Sprintf("%s-%d-%s", m.Name, len(replace), filepath.Base(file)))
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = path
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, m.Name+".json")
	return path, os.WriteFile(path, list, 0o644)
}

// mutate returns the mutated text of each file that is edited. An edit that does not fit the source any more is an
// error: a mutant without its mistake would prove nothing.
func (m *Mutant) mutate(read func(file string) (string, error)) (map[string]string, error) {
	mutated := make(map[string]string)
	for _, edit := range m.Edits {
		text, known := mutated[edit.File]
		if !known {
			var err error
			if text, err = read(edit.File); err != nil {
				return nil, fmt.Errorf("mutant %s: %w", m.Name, err)
			}
		}
		if n := strings.Count(text, edit.Old); n != 1 {
			return nil, fmt.Errorf("mutant %s: %s holds %d times what is to be replaced, instead of once: %q",
				m.Name, edit.File, n, edit.Old)
		}
		mutated[edit.File] = strings.Replace(text, edit.Old, edit.New, 1)
	}
	return mutated, nil
}
