package modules_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/lab/modules"
)

// root is where the repository lies, seen from this package.
const root = "../.."

// forTests are what modules that a user needs require for their tests alone. Everything else that they require they
// import.
var forTests = []string{"pgregory.net/rapid", "go.uber.org/goleak"}

// userProgram protects a handler with records in PostgreSQL.
const userProgram = `package main

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/postgres"
)

func main() {
	store, err := postgres.Open(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := onceward.New(store, onceward.Config{})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /payments", guard.Handler(http.NotFoundHandler(), onceward.Transactional()))
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}
`

// memoryProgram adds nothing to the root module.
const memoryProgram = `package main

import (
	"log"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

func main() {
	guard, err := onceward.New(memory.New(), onceward.Config{})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /payments", guard.Handler(http.NotFoundHandler()))
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}
`

// TestModulesOfAUser counts the modules that users get, their own included.
func TestModulesOfAUser(t *testing.T) {
	tests := []struct {
		name    string
		program string
		paths   []string
		most    int
	}{
		{"net/http and PostgreSQL", userProgram, []string{modules.Path, modules.Path + "/store/postgres"}, 22},
		{"net/http and memory", memoryProgram, []string{modules.Path}, 6},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			u := newUser(t, nil)
			u.write(t, test.program)
			u.get(t, test.paths...)
			if nightly.Runs() { // what a build lacks, the list of the packages that it imports lacks too
				u.run(t, "build", "-o", os.DevNull, ".")
			}
			list, imported := u.buildList(t), u.imported(t)
			t.Logf("%d modules:\n%s", len(list), lines(list))
			if version := list[pgx]; version != "" && version != oldestPgx {
				t.Errorf("a user gets pgx %s, want %s", version, oldestPgx)
			}
			if len(list) > test.most {
				t.Errorf("a user gets %d modules, at most %d are allowed", len(list), test.most)
			}
			for m := range list {
				if modules.Ours(m) && !imported[m] && m != modules.Path+"/store/storetest" {
					t.Errorf("the program does not import %s, which is in its build list nevertheless", m)
				}
			}
		})
	}
}

// pgx is the driver of store/postgres, and oldestPgx the release that its guide names as the oldest: a program may stay
// on it.
const pgx, oldestPgx = "github.com/jackc/pgx/v5", "v5.8.0"

// TestNoVersionIsRaised gives a user the oldest version of every module that anything in this repository requires,
// then lets them add Onceward. Another adds only the foreign modules that the modules of Onceward require for their
// own packages. All modules have the same version for both: they are raised by what these need, and not by indirect
// requirements of Onceward or by its tests.
func TestNoVersionIsRaised(t *testing.T) {
	oldest := theMachine(t).oldest
	u := newUser(t, oldest)
	u.get(t, modules.Path, modules.Path+"/store/postgres")
	list := u.buildList(t)

	var used []string
	for _, m := range theMachine(t).tree.Modules {
		if m.Path != modules.Path && m.Path != modules.Path+"/store/postgres" {
			continue
		}
		for _, r := range m.Mod.Require {
			if !r.Indirect && !modules.Ours(r.Mod.Path) && !slices.Contains(forTests, r.Mod.Path) {
				used = append(used, r.Mod.String())
			}
		}
	}
	bare := newUser(t, oldest)
	bare.write(t, "package main\n\nfunc main() {}\n")
	bare.get(t, used...)
	kept := 0
	for m, version := range bare.buildList(t) {
		switch {
		case slices.Contains(forTests, m):
		case list[m] != version:
			t.Errorf("%s is raised from %s to %s, which no module needs that Onceward imports", m, version, list[m])
		default:
			kept++
		}
	}
	if kept == 0 {
		t.Error("no module kept its version: the test saw nothing")
	}
	t.Logf("%d modules keep their version", kept)
}

// user is a module of a user, in a sandbox that is served this tree.
type user struct {
	*modules.Sandbox
	dir     string
	version string
}

// machine is where all users have their modules. They are served the same tree, and what one has downloaded the others
// need not.
type machine struct {
	*modules.Sandbox
	tree *modules.Tree
	// oldest are made up: they are served beside the tree.
	oldest []module.Version
}

// shared is the machine, made on first use in the directory that TestMain removes.
var (
	dir    string
	shared = sync.OnceValues(newMachine)
)

func TestMain(m *testing.M) {
	var err error
	if dir, err = os.MkdirTemp("", "onceward-modules-"); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(code)
}

func newMachine() (*machine, error) {
	tree, err := modules.Load(context.Background(), root)
	if err != nil {
		return nil, err
	}
	proxy := modules.Proxy(filepath.Join(dir, "proxy"))
	if err := proxy.AddTree(tree, tree.Version); err != nil {
		return nil, err
	}
	oldest, err := oldestOf(tree)
	for _, m := range oldest {
		err = errors.Join(err, proxy.Add(m.Path, m.Version, madeUp(m)))
	}
	if err != nil {
		return nil, err
	}
	sandbox, err := modules.NewSandbox(context.Background(), dir, proxy)
	return &machine{sandbox, tree, oldest}, err
}

func theMachine(t *testing.T) *machine {
	t.Helper()
	m, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// newUser makes a user's module that requires the given versions already.
func newUser(t *testing.T, required []module.Version) *user {
	t.Helper()
	on := theMachine(t)
	goMod := "module example.com/payments\n\ngo " + on.tree.Modules[0].Mod.Go.Version + "\n"
	for _, m := range required {
		goMod += fmt.Sprintf("\nrequire %s %s\n", m.Path, m.Version)
	}
	dir, err := on.Module(rand.Text(), goMod, map[string]string{"main.go": userProgram})
	if err != nil {
		t.Fatal(err)
	}
	return &user{Sandbox: on.Sandbox, dir: dir, version: on.tree.Version}
}

// write replaces the user's program.
func (u *user) write(t *testing.T, program string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(u.dir, "main.go"), []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
}

// get adds modules, those of this repository at the version of the tree.
func (u *user) get(t *testing.T, paths ...string) {
	t.Helper()
	for i, p := range paths {
		if modules.Ours(p) {
			paths[i] = p + "@" + u.version
		}
	}
	u.run(t, append([]string{"get"}, paths...)...)
}

// buildList is the version of each module that the user gets.
func (u *user) buildList(t *testing.T) map[string]string {
	t.Helper()
	list := make(map[string]string)
	for line := range strings.Lines(u.run(t, "list", "-m", "-e", "all")) {
		m, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		list[m] = version
	}
	return list
}

// imported are the modules whose packages are in the user's program.
func (u *user) imported(t *testing.T) map[string]bool {
	t.Helper()
	found := make(map[string]bool)
	for m := range strings.Lines(u.run(t, "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")) {
		found[strings.TrimSpace(m)] = true
	}
	return found
}

func (u *user) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := u.Go(t.Context(), u.dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// oldestOf is a version below all others of each foreign module that a go.mod of the tree requires.
func oldestOf(tree *modules.Tree) (oldest []module.Version, err error) {
	required := make(map[string]bool)
	for _, m := range tree.Modules {
		for _, r := range m.Mod.Require {
			if !modules.Ours(r.Mod.Path) {
				required[r.Mod.Path] = true
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(required)) {
		_, major, ok := module.SplitPathVersion(p)
		if !ok {
			return nil, fmt.Errorf("module path %q", p)
		}
		if major == "" {
			major = "/v0"
		}
		oldest = append(oldest, module.Version{Path: p, Version: strings.TrimLeft(major, "/.") + ".0.0-0"})
	}
	return oldest, nil
}

// madeUp is the content of a module at its oldest version, which never existed.
func madeUp(m module.Version) []zip.File {
	files := fstest.MapFS{"go.mod": {Data: []byte("module " + m.Path + "\n\ngo 1.21\n")}}
	return []zip.File{mapFile{files, "go.mod"}}
}

// mapFile is a file in memory as package zip wants it.
type mapFile struct {
	fs   fstest.MapFS
	name string
}

func (f mapFile) Path() string                 { return path.Clean(f.name) }
func (f mapFile) Lstat() (fs.FileInfo, error)  { return f.fs.Stat(f.name) }
func (f mapFile) Open() (io.ReadCloser, error) { return f.fs.Open(f.name) }

func lines(list map[string]string) string {
	var text strings.Builder
	for _, m := range slices.Sorted(maps.Keys(list)) {
		fmt.Fprintf(&text, "\t%s %s\n", m, list[m])
	}
	return text.String()
}
