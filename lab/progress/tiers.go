package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// module is the path that the import paths of all of our packages begin with.
const module = "github.com/onceward/onceward"

// tags are the build tags of all tiers. MessagePack, which no test of gin speaks, would take most of the time that gin
// takes to compile.
const tags = "-tags=nomsgpack"

// pkg is a package with tests, as `go list` describes it.
type pkg struct {
	ImportPath, Dir           string
	TestGoFiles, XTestGoFiles []string
	TestImports, XTestImports []string
	// counts reports whether tests count allocations, which is done without the race detector.
	counts bool
}

// room returns the directory of the package, as ./store/sqlite, or . for the root package.
func (p *pkg) room() string {
	return strings.Replace(p.ImportPath, module, ".", 1)
}

// needsServer reports whether the tests find or start a server.
func (p *pkg) needsServer() bool {
	const servers = module + "/internal/servers"
	return p.ImportPath == servers || slices.Contains(p.TestImports, servers) || slices.Contains(p.XTestImports, servers)
}

// batch is one call of `go test`.
type batch struct {
	name     string
	packages []pkg
	race     bool
	flags    []string
}

// A tier is a choice among all packages with tests.
const (
	tierQuick = "quick"
	tierTest  = "test"
	tierAll   = "all"
)

var (
	// racing are the packages whose goroutines are our own: the race detector watches them in every tier but quick. Of
	// the adapters only MCP's starts goroutines; the others would have their frameworks compiled a second time.
	racing = []string{
		".", "./phase", "./outbox", "./reconcile", "./janitor", "./inbox", "./client", "./limit", "./adapter/mcp", "./internal/fair",
		"./internal/consuming", "./store/memory", "./store/sqlite", "./store/tiered", "./store/breaker",
	}
	// single are the packages that the race detector never watches: a search is the work of one goroutine.
	single = []string{"./lab/model"}
	// nightly are the packages that only tierAll tests, because their dependencies take longer to compile than they take
	// to test: the recipes for object-relational mappers, and the libraries that the benches compare with.
	nightly = []string{"./lab/feature/orm", "./lab/bench"}
	// quickLab are the packages of lab whose tests neither run processes nor search for minutes.
	quickLab = []string{"./lab/doctest", "./lab/importrules", "./lab/count", "./lab/progress", "./lab/release", "./lab/steady"}
	// slowest are the packages whose tests begin first, so that no processor waits for them at the end: a package that
	// waits much lies beside one that keeps a processor busy.
	slowest = []string{
		"./store/postgres", "./lab/chaos", "./store/redis", "./store/mysql", "./store/sqlite", "./cmd/onceward",
		"./cmd/onceward/internal/doctor", "./broker/amqp", "./store/dynamodb", "./lab/feature/routers", "./oncewardtest",
		"./store/storetest", "./reconcile/ledger", "./internal/fair", "./lab/outboxcrash", "./lab/crashtest", "./lab/modules",
	}
)

// isUnder reports whether a package lies in one of the rooms, or below one. The root package has nothing below it.
func isUnder(p pkg, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(room string) bool {
		return p.room() == room || room != "." && strings.HasPrefix(p.room(), room+"/")
	})
}

// batchesOf returns the calls of `go test` that make up a tier, given all packages with tests.
func batchesOf(tier string, all []pkg) ([]batch, error) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b pkg) int { return place(a) - place(b) })
	var watched, plain []pkg
	for _, p := range all {
		switch {
		case tier == tierAll && isUnder(p, single):
			plain = append(plain, p)
		case tier == tierAll:
			watched = append(watched, p)
		case isUnder(p, nightly):
		case tier == tierQuick:
			if !p.needsServer() && (!isUnder(p, []string{"./lab"}) || isUnder(p, quickLab)) {
				plain = append(plain, p)
			}
		case isUnder(p, racing):
			watched = append(watched, p)
		default:
			plain = append(plain, p)
		}
	}
	counted := batch{name: "allocations, without the race detector", flags: []string{"-run=Alloc"}}
	for _, p := range watched {
		if p.counts {
			counted.packages = append(counted.packages, p)
		}
	}
	switch tier {
	case tierQuick:
		return []batch{{name: "tests that need no server", packages: plain}}, nil
	case tierTest:
		return []batch{
			{name: "tests", packages: plain},
			{name: "tests under the race detector", packages: watched, race: true},
			counted,
		}, nil
	case tierAll:
		return []batch{
			{name: "tests under the race detector", packages: watched, race: true, flags: []string{atNight()}},
			{name: "tests of one goroutine", packages: plain},
			counted,
		}, nil
	default:
		return nil, fmt.Errorf("%q is no tier: name one of %s, %s and %s", tier, tierQuick, tierTest, tierAll)
	}
}

// atNight returns the flag that lets more tests of a package run at once than there are processors: the conformance suite
// runs on many servers then, and waits for them, for leases and for locks.
func atNight() string { return fmt.Sprintf("-parallel=%d", 3*runtime.GOMAXPROCS(0)) }

// place returns when a package is tested: the slowest ones first.
func place(p pkg) int {
	if i := slices.Index(slowest, p.room()); i >= 0 {
		return i
	}
	return len(slowest)
}

// arguments returns what `go test` is called with.
func (b *batch) arguments(further []string) []string {
	args := []string{tags, "-count=1", "-vet=off", "-ldflags=-s -w"}
	if b.race {
		// SQLite is made from C by a machine, and one goroutine at a time uses a connection: watching SQLite would take a
		// third of the time.
		args = append(args, "-race", "-gcflags=github.com/ncruces/go-sqlite3-wasm/...=-race=false")
	}
	args = append(append(args, b.flags...), further...)
	for _, p := range b.packages {
		args = append(args, p.ImportPath)
	}
	return args
}

// list asks the go command for the packages with tests that the patterns match.
func list(ctx context.Context, goCommand string, flags, patterns []string) (found []pkg, err error) {
	args := append([]string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles,TestImports,XTestImports"}, flags...)
	cmd := exec.CommandContext(ctx, goCommand, append(args, patterns...)...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, complaints.String())
	}
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("the output of go list: %w", err)
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		if p.counts, err = countsAllocations(&p); err != nil {
			return nil, err
		}
		found = append(found, p)
	}
}

var countingTest = regexp.MustCompile(`(?m)^func Test\w*Alloc`)

// countsAllocations reports whether a test of the package has a name that says that it counts allocations.
func countsAllocations(p *pkg) (bool, error) {
	for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		text, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil || countingTest.Match(text) {
			return err == nil, err
		}
	}
	return false, nil
}
