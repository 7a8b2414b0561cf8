// Package modules reads the Go modules of this repository and serves them as a module proxy in a directory. With it a
// test or a release sees the modules as a user does, at one version and without go.work, before anything is published.
package modules

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
)

// Path is the module path of the root module. The path of another module is this path and its directory.
const Path = "github.com/onceward/onceward"

// Tree is a working tree with its modules.
type Tree struct {
	// Root is the directory of the repository.
	Root string
	// Version is the version that the Makefile names: all modules have it, and require it of each other.
	Version string
	// Modules are in the order of their directories; the root module is the first.
	Modules []*Module
}

// Module is one module of the tree.
type Module struct {
	// Path is the module path that its go.mod declares.
	Path string
	// Dir is its directory below the root, with slashes; "." for the root module.
	Dir string
	// Mod is its go.mod.
	Mod *modfile.File
	// Files are the files that a release of it contains, relative to Dir, with slashes.
	Files []string
}

// Load reads the modules of the repository at root. It lists files as git does, new ones included and ignored ones left
// out.
func Load(ctx context.Context, root string) (*Tree, error) {
	version, err := makefileVersion(root)
	if err != nil {
		return nil, err
	}
	out, err := Git(ctx, root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	files := slices.DeleteFunc(strings.Split(out, "\x00"), func(file string) bool {
		info, err := os.Stat(filepath.Join(root, filepath.FromSlash(file)))
		return file == "" || errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular()
	})
	slices.Sort(files)
	files = slices.Compact(files)

	tree := &Tree{Root: root, Version: version}
	byDir := make(map[string]*Module)
	for _, file := range files {
		if path.Base(file) != "go.mod" {
			continue
		}
		m := &Module{Dir: path.Dir(file)}
		if m.Mod, err = parseMod(filepath.Join(root, filepath.FromSlash(file))); err != nil {
			return nil, err
		}
		m.Path = m.Mod.Module.Mod.Path
		byDir[m.Dir] = m
		tree.Modules = append(tree.Modules, m)
	}
	if byDir["."] == nil {
		return nil, fmt.Errorf("modules: there is no go.mod at the root of %s", root)
	}
	slices.SortFunc(tree.Modules, func(a, b *Module) int { return strings.Compare(a.Path, b.Path) })
	for _, file := range files {
		dir := path.Dir(file)
		for byDir[dir] == nil {
			dir = path.Dir(dir)
		}
		byDir[dir].Files = append(byDir[dir].Files, strings.TrimPrefix(file, dir+"/"))
	}
	return tree, nil
}

// Tag is the git tag that publishes the module at a version.
func (m *Module) Tag(version string) string {
	if m.Dir == "." {
		return version
	}
	return m.Dir + "/" + version
}

// Packages are the import paths of the packages in the module that are more than tests.
func (m *Module) Packages() (packages []string) {
	for _, file := range m.Files {
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || notGo.MatchString(file) {
			continue
		}
		packages = append(packages, path.Join(m.Path, path.Dir(file)))
	}
	slices.Sort(packages)
	return slices.Compact(packages)
}

// notGo matches files that the go command leaves out for the name of a directory or their own.
var notGo = regexp.MustCompile(`(^|/)([_.]|testdata/|vendor/)`)

// Siblings are the requirements of the module on other modules of the repository.
func (m *Module) Siblings() (siblings []module.Version) {
	for _, r := range m.Mod.Require {
		if Ours(r.Mod.Path) {
			siblings = append(siblings, r.Mod)
		}
	}
	return siblings
}

// Ours reports whether a module path belongs to this repository.
func Ours(modulePath string) bool {
	return modulePath == Path || strings.HasPrefix(modulePath, Path+"/")
}

// SetVersion makes the Makefile and the requirements of all modules on each other name the version. It does not write
// go.work: scripts/workspace.sh does.
func (t *Tree) SetVersion(version string) error {
	name := filepath.Join(t.Root, "Makefile")
	makefile, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name, versionLine.ReplaceAll(makefile, []byte("${1}"+version)), 0o644); err != nil {
		return err
	}
	for _, m := range t.Modules {
		for _, sibling := range m.Siblings() {
			if err := m.Mod.AddRequire(sibling.Path, version); err != nil {
				return err
			}
		}
		text, err := m.Mod.Format()
		if err != nil {
			return err
		}
		if err := os.WriteFile(m.Mod.Syntax.Name, text, 0o644); err != nil {
			return err
		}
	}
	t.Version = version
	return nil
}

// versionLine is the line of the Makefile that names the version.
var versionLine = regexp.MustCompile(`(?m)^(VERSION *\?= *)(\S+)$`)

func makefileVersion(root string) (string, error) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return "", err
	}
	found := versionLine.FindSubmatch(makefile)
	if found == nil {
		return "", errors.New("modules: the Makefile has no line VERSION ?= vX.Y.Z")
	}
	return string(found[2]), nil
}

func parseMod(name string) (*modfile.File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	file, err := modfile.Parse(name, text, nil)
	if err == nil && file.Module == nil {
		err = fmt.Errorf("modules: %s names no module", name)
	}
	return file, err
}

// Git runs a git command in a directory and returns what it printed.
func Git(ctx context.Context, dir string, args ...string) (string, error) {
	return output(exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...))
}

// output runs a command. Its error holds everything that the command said.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}
