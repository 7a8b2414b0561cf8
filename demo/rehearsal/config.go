package rehearsal

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/onceward/onceward/examples/payments"
)

// Config is the user's choices.
type Config struct {
	// Store is the URL of the store, for [Program].Servers. Default: an SQLite file in the directory.
	Store string
	// Dir is the directory of the data. Default: a temporary directory, which is removed at the end.
	Dir string
	// Addr is the address of the system. Default: a free port, or 127.0.0.1:8080 without a load.
	Addr string
	// InFlight is the answer to a duplicate of a request in flight: conflict, wait or accepted.
	InFlight string
	// Payments is the number of payments that the clients request.
	Payments int
	// Seed is the seed of the load and the faults. Default: a random seed.
	Seed uint64
	// Processes is the number of processes that serve. One means
	// this process; several are child processes, which are killed.
	Processes int
	// NoLoad means that the demo only serves.
	NoLoad bool
	// Unprotected means that the system runs without Onceward.
	Unprotected bool
}

// DefaultPayments is the default of Payments: with their refunds and bookings they take about eight seconds.
const DefaultPayments = 1200

// DefaultAddr is the address of the system without a load.
const DefaultAddr = "127.0.0.1:8080"

// mostProcesses is the largest number of processes. It is more than two cores can use.
const mostProcesses = 16

func (c *Config) check() error {
	switch {
	case c.Payments < 1:
		return errors.New("--payments must be at least 1")
	case c.Processes < 1 || c.Processes > mostProcesses:
		return errors.New("--processes must be from 1 to 16")
	case !slices.Contains([]string{"", "conflict", "wait", "accepted"}, c.InFlight):
		return errors.New("--in-flight must be conflict, wait or accepted")
	case c.NoLoad && c.Processes > 1:
		return errors.New("--no-load serves in one process: leave --processes out")
	case c.NoLoad && c.Unprotected:
		return errors.New("--no-load shows what Onceward does: leave --unprotected out")
	case c.Addr != "" && c.Processes > 1:
		return errors.New("several processes listen on free ports: leave --addr out")
	}
	if c.Seed == 0 {
		c.Seed = uint64(rand.Uint32()) + 1 // short enough to be typed
	}
	if c.NoLoad {
		c.Addr = cmp.Or(c.Addr, DefaultAddr)
	}
	c.Addr = cmp.Or(c.Addr, "127.0.0.1:0")
	return nil
}

// manualLease is the lease of an operation in a demo without a load, in which a person kills the process.
const manualLease = 15 * time.Second

// timing returns times of seconds for what takes minutes in production.
func (c *Config) timing() payments.Timing {
	t := payments.Timing{
		Arrival: 2 * time.Second,
		Lease:   2 * time.Second, Call: 500 * time.Millisecond, Look: 200 * time.Millisecond, Backoff: 50 * time.Millisecond,
	}
	if c.NoLoad {
		// A person needs time to kill the process during a call, and to see that the operation is not forgotten.
		t.Call, t.Lease = time.Minute, manualLease
	}
	return t
}
