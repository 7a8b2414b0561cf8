package importrules

import (
	"bytes"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mostLines is where a source file has to be split. Most tell their story in 100 to 300 lines.
const mostLines = 600

// emptyNames are package names that say nothing about what is inside.
var emptyNames = []string{"util", "utils", "common", "helper", "helpers", "misc", "shared"}

// checkFile says what is wrong with a Go file that is not a test.
func checkFile(path string, src []byte) error {
	lines := bytes.Count(src, []byte("\n"))
	if len(src) > 0 && src[len(src)-1] != '\n' {
		lines++
	}
	if lines > mostLines {
		return fmt.Errorf("%s has %d lines, at most %d are allowed", path, lines, mostLines)
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, src, parser.PackageClauseOnly)
	if err != nil {
		return err
	}
	if slices.Contains(emptyNames, file.Name.Name) {
		return fmt.Errorf("%s: a package named %s says nothing about what it does", path, file.Name.Name)
	}
	return nil
}

// TestFilesAreSmallAndPackagesNamed reads every source file. That has a second use: it makes the result of this
// package's tests depend on all sources, which the go command's test cache could not know from the call of go list.
func TestFilesAreSmallAndPackagesNamed(t *testing.T) {
	checked := 0
	err := filepath.WalkDir(moduleRoot, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != moduleRoot && skipped(entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		src, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // Removed, or renamed by an editor, while we looked.
		}
		if err != nil {
			return err
		}
		checked++
		if err := checkFile(path, src); err != nil {
			t.Error(err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked == 0 {
		t.Fatal("found no source file: the check saw nothing")
	}
}

// skipped reports whether the go command leaves a directory out as well.
func skipped(dir string) bool {
	return dir == "testdata" || dir == "vendor" || strings.HasPrefix(dir, ".") || strings.HasPrefix(dir, "_")
}

func TestFileCheckHasTeeth(t *testing.T) {
	clause := "package sweeper\n"
	tests := []struct {
		name string
		src  string
		ok   bool
	}{
		{"small", clause, true},
		{"as long as allowed", clause + strings.Repeat("\n", mostLines-1), true},
		{"one line too long", clause + strings.Repeat("\n", mostLines), false},
		{"one line too long, without a newline at its end", clause + strings.Repeat("\n", mostLines-1) + "// end", false},
		{"an empty name", "package helpers\n", false},
		{"not Go", "sweeper\n", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := checkFile("made-up.go", []byte(test.src)); (err == nil) != test.ok {
				t.Errorf("checkFile = %v, want ok: %t", err, test.ok)
			}
		})
	}
}
