package importrules

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const (
	module = "github.com/onceward/onceward"
	// moduleRoot is where the module lies, seen from this package.
	moduleRoot = "../.."
)

// graph is what each package imports outside its tests, by import path. The packages of this module are named by their
// path inside it, and the root package is "." (see room).
type graph map[string][]string

// loadGraph asks the go command, once, for all packages of all modules and everything they depend on.
func loadGraph(t *testing.T) graph {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Imports", "work")
	cmd.Dir = moduleRoot
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	g := make(graph)
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg struct {
			ImportPath string
			Imports    []string
		}
		err := dec.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			return g
		}
		if err != nil {
			t.Fatalf("output of go list: %v", err)
		}
		imports := make([]string, len(pkg.Imports))
		for i, path := range pkg.Imports {
			imports[i] = room(path)
		}
		g[room(pkg.ImportPath)] = imports
	}
}

// room shortens the import path of a package of this module to its directory, written as ./store/sqlite, or . for the
// root; other paths stay as they are. No import path of another module starts with a dot.
func room(path string) string {
	if path == module {
		return "."
	}
	if dir, ours := strings.CutPrefix(path, module+"/"); ours {
		return "./" + dir
	}
	return path
}

// ours reports whether a package belongs to this module.
func ours(pkg string) bool { return strings.HasPrefix(pkg, ".") }

// standard reports whether a package belongs to the standard library: the first part of its path has no dot.
func standard(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return !strings.Contains(first, ".")
}

// under reports whether pkg is one of the directories, or lies in one of them.
func under(pkg string, dirs ...string) bool {
	for _, dir := range dirs {
		if pkg == dir || strings.HasPrefix(pkg, dir+"/") {
			return true
		}
	}
	return false
}

// reach returns the chain of imports to each package that from depends on, itself excluded. Imports of a package for
// which follow is false are not looked at.
func (g graph) reach(from string, follow func(pkg string) bool) map[string][]string {
	chains := make(map[string][]string)
	queue := [][]string{{from}}
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		for _, next := range g[chain[len(chain)-1]] {
			if _, seen := chains[next]; seen || next == from {
				continue
			}
			longer := append(chain[:len(chain):len(chain)], next)
			chains[next] = longer
			if follow(next) {
				queue = append(queue, longer)
			}
		}
	}
	return chains
}
