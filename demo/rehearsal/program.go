package rehearsal

import (
	"context"
	"io"

	"github.com/onceward/onceward/examples/payments"
)

// Program is the program that runs the demo, and what it adds to SQLite and counters.
type Program struct {
	// GoRun is the command that runs the program from a clone of the repository, such as "go run -C demo .".
	GoRun string
	// Command is the word between the name of the program and the flags. Default: none.
	Command string
	// Child is the command by which the program runs itself as one of several processes. It calls [Child].
	Child string
	// Servers are the stores that [Config].Store can name. Default: none, and only SQLite files are supported.
	Servers Servers
	// Monitor returns the monitor of one process. Default: none, and the system has no metrics.
	Monitor func() (payments.Monitor, error)
}

// Servers are stores that a program adds.
type Servers interface {
	// Prepare creates a place for a demo at a URL, under a name that no other demo has. Kept means that
	// the demo's directory outlives the demo. After an error there is no place, and nothing to remove.
	Prepare(ctx context.Context, url, name string, kept bool) (Place, error)
	// Open opens a place, once in each process, and sets it in the configuration of the system.
	Open(ctx context.Context, place Place, config *payments.Config) (io.Closer, error)
}

// Place is the store of one demo. On a server, each data directory has its own place: the provider's
// ledger is in the directory, and the system must not know charges that are not in the ledger.
type Place struct {
	// URL and Items are for [Servers].Open, in every process: the URL of the store,
	// and on a store without SQL the name of the table for what the system stores.
	URL, Items string
	// Kind is the store's name for people, and Where the demo's part of its server; empty for a file.
	Kind, Where string
	// Drop removes what was created on the server. Default: there is nothing to remove.
	Drop func(ctx context.Context) error `json:"-"`
}
