// Package servers finds or starts the real servers that tests, benchmarks and fault programs need, and breaks
// them on request. Each kind of server has its own files; server.go has the common parts, and testing.go the
// functions that take a test. Servers are private to the process and do not outlive it, even if the process
// is killed: the system then sends them a signal to stop, and the next process removes the files.
//
// It is used by the tests of store/postgres, store/redis, store/mysql, store/dynamodb, of the brokers, of storeurl,
// cmd and examples, and by lab. It is in internal/ and not in lab because modules outside of lab must not depend on
// lab, and every module can import internal/. Because it is in the root module, it uses only the standard library:
// it queries PostgreSQL and Redis in their simple protocols, a PostgreSQL that stays with psql, and MariaDB with
// its client, and it only reads the greeting of a broker. Its tests that need a client library are in lab/servers.
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

// fleet is the servers that this process has started and not closed yet. It is the one global
// variable of the package: servers are expensive, so all tests of a process share what they can.
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

// CloseAll stops every server that this process has started and removes their files, including
// the templates for further servers. Programs without a TestMain call it before they end.
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

// Main runs the tests, then stops and removes all servers of this process, and returns the exit code. It
// runs twice as many tests at once as there are processors, unless -parallel is set: most tests wait for
// a server, its disk or the end of a lock. It draws fewer random sequences on each change than at night.
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

// Tests makes Main available to a checker that runs the tests itself, in place of the argument of TestMain:
//
//	goleak.VerifyTestMain(servers.Tests{M: m})
type Tests struct{ M interface{ Run() int } }

// Run calls Main.
func (t Tests) Run() int { return Main(t.M) }
