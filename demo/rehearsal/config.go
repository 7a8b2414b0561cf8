package rehearsal

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/onceward/onceward/examples/payments"
)

// Config is what a user can choose.
type Config struct {
	// Store is the URL of the store, which [Program].Servers knows. Default: an SQLite file in the directory.
	Store string
	// Dir keeps the data. Default: a temporary directory, which is removed at the end.
	Dir string
	// Addr is where the system listens. Default: a free port, or 127.0.0.1:8080 without a load.
	Addr string
	// InFlight is what a duplicate of a request in flight gets: conflict, wait or accepted.
	InFlight string
	// Payments is how many payments the clients ask for.
	Payments int
	// Seed begins the load and the faults. Default: a random one.
	Seed uint64
	// Processes is how many processes serve. One is this one; several are processes of their own, which are killed.
	Processes int
	// NoLoad only serves.
	NoLoad bool
	// Unprotected leaves Onceward out.
	Unprotected bool
}

// DefaultPayments is how many payments the clients ask for: with their refunds and bookings they take about eight seconds.
const DefaultPayments = 1200

// DefaultAddr is where the system listens without a load.
const DefaultAddr = "127.0.0.1:8080"

// mostProcesses is more than two cores have a use for.
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

// manualLease is how long an operation of a process that was killed stays in progress where a person looks on.
const manualLease = 15 * time.Second

// timing lets a demo of seconds show what takes minutes in life.
func (c *Config) timing() payments.Timing {
	t := payments.Timing{
		Arrival: 2 * time.Second,
		Lease:   2 * time.Second, Call: 500 * time.Millisecond, Look: 200 * time.Millisecond, Backoff: 50 * time.Millisecond,
	}
	if c.NoLoad {
		// A person who wants to kill the process during a call needs time for it, and to see that it is not forgotten.
		t.Call, t.Lease = time.Minute, manualLease
	}
	return t
}
