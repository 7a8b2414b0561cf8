// Package servers finds or starts the real servers that tests, benchmarks and fault programs need, and breaks them on
// request. Each kind of server has its own files; what all kinds have in common is in server.go, and what takes a test
// is in testing.go. What it starts is private to the process and does not outlive it, also if the process is killed:
// the system then tells the server to stop, and the next process removes the files.
//
// It is used by the tests of store/postgres, store/redis, store/mysql, store/dynamodb, of the brokers, of storeurl, cmd
// and examples, and by lab. It is in internal/ and not in lab because modules outside of lab must not depend on lab, and
// internal/ is under the path of all modules. As it lies in the root module, it has the standard library alone:
// PostgreSQL and Redis are asked in their simple protocols, a PostgreSQL that stays with psql, MariaDB with its client,
// and a broker is greeted on its port. Its tests that need a client are in lab/servers.
//
// A package of tests that uses a server ends like this, or leaves files behind until the next run:
//
//	func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }
//
// It works on Unix only: the servers are stopped, paused and killed by signals.
package servers

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"

	"github.com/onceward/onceward/internal/nightly"
)

// fleet is what this process has started and not yet closed. It is the one global of the package: servers are
// expensive, so all tests of a process share what they can.
var fleet struct {
	mu      sync.Mutex
	members map[io.Closer]struct{}
}

// enlist makes CloseAll responsible for a server.
func enlist(server io.Closer) {
	fleet.mu.Lock()
	defer fleet.mu.Unlock()
	if fleet.members == nil {
		fleet.members = make(map[io.Closer]struct{})
	}
	fleet.members[server] = struct{}{}
}

func dismiss(server io.Closer) {
	fleet.mu.Lock()
	defer fleet.mu.Unlock()
	delete(fleet.members, server)
}

// CloseAll stops every server that this process has started and removes their files, also those that are kept to start
// further servers quickly. Programs without a TestMain call it before they end.
func CloseAll() error {
	fleet.mu.Lock()
	members := fleet.members
	fleet.members = nil
	fleet.mu.Unlock()
	var errs []error
	for server := range members {
		errs = append(errs, server.Close())
	}
	return errors.Join(append(errs, workspace.remove())...)
}

// Main runs the tests, then stops and removes all servers of this process, and returns the code to exit with. Twice as
// many run at once as there are processors, unless -parallel says how many: most of them wait, for a server, its disk
// or the end of a lock. Random sequences are fewer on each change than at night.
func Main(m interface{ Run() int }) int {
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	nightly.DrawLess("20")
	code := m.Run()
	if err := CloseAll(); err != nil {
		fmt.Fprintln(os.Stderr, "servers:", err)
		return max(code, 1)
	}
	return code
}

// Tests is a TestMain's argument that runs like Main, for use with a checker that wants to run the tests itself:
//
//	goleak.VerifyTestMain(servers.Tests{M: m})
type Tests struct{ M interface{ Run() int } }

// Run is Main.
func (t Tests) Run() int { return Main(t.M) }
