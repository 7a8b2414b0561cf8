package rehearsal

import (
	"context"
	"io"

	"github.com/onceward/onceward/examples/payments"
)

// Program is the program that runs the demo, and what the program adds to SQLite and counters.
type Program struct {
	// GoRun is the command by which a user runs the program from a clone of the repository, such as "go run -C demo .".
	GoRun string
	// Command is the word between the name of the program and the flags. Default: none.
	Command string
	// Child is the command by which the program runs itself as one of several processes; it calls [Child].
	Child string
	// Servers are the stores that [Config].Store can name. Default: none, and there is only an SQLite file.
	Servers Servers
	// Monitor makes the monitor of one process. Default: none, and the system shows no metrics.
	Monitor func() (payments.Monitor, error)
}

// Servers are stores that a program adds.
type Servers interface {
	// Prepare makes a place for a demo at a URL, under a name that no other demo has. Kept says that the demo's directory
	// outlives the demo. On an error there is no place, and nothing to be removed.
	Prepare(ctx context.Context, url, name string, kept bool) (Place, error)
	// Open opens a place, once in each process, and puts it into the configuration of the system.
	Open(ctx context.Context, place Place, config *payments.Config) (io.Closer, error)
}

// Place is the store of one demo. On a server, each data directory has a place of its own: the provider's ledger is in the
// directory, and the system must not know charges that the ledger does not.
type Place struct {
	// URL and Items are for [Servers].Open, in every process: the URL of the store, and the table of what the system
	// writes down on a store without SQL.
	URL, Items string
	// Kind is what people call the store, and Where is what the demo has made on its server, empty for a file.
	Kind, Where string
	// Drop removes what was made on the server. Default: nothing was.
	Drop func(ctx context.Context) error `json:"-"`
}
