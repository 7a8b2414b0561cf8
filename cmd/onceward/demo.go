package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/demostore"
	"github.com/onceward/onceward/demo/rehearsal"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/payments/monitor"
)

// demoCommand runs the reference payments system under failing clients and a failing provider.
type demoCommand struct {
	Payments    int    `default:"1200" help:"How many payments the clients ask for; refunds and bookings come along."`
	Seed        uint64 `help:"Repeat the load of an earlier run, and its faults but for what depends on time. Default: a random one."`
	Processes   int    `default:"1" help:"How many processes serve. With more than one, each is killed and restarted, and one is paused past its lease."`
	Store       string `help:"Where the records are: sqlite:PATH, or a server: postgres://user@host/database, where the demo makes a schema of its own, mysql://user@host/, where it makes a database, or dynamodb://NAME, where it makes tables; it drops what it made unless --dir is given. Default: an SQLite file in --dir." placeholder:"URL"`
	Dir         string `type:"path" help:"Directory for the data, kept over a restart. Default: a temporary one, removed at the end."`
	Unprotected bool   `help:"The same load and faults without Onceward, to see what happens then."`
	NoLoad      bool   `help:"Only serve, and say what to try with curl."`
	Addr        string `help:"Address to listen on; port 0 takes a free one. Default: 127.0.0.1:8080 with --no-load, a free port otherwise."`
	InFlight    string `default:"conflict" enum:"conflict,wait,accepted" help:"What a duplicate of a request in flight gets: ${enum}."`
}

// Run runs the demo.
func (c *demoCommand) Run(ends interrupts, out io.Writer) error {
	if c.Unprotected && strings.HasPrefix(c.Store, "dynamodb:") {
		return errors.New("--unprotected needs a database: on DynamoDB it is Onceward that commits")
	}
	return rehearsal.Run(ends.first, ends.second, demoProgram(), rehearsal.Config{
		Store: c.Store, Dir: c.Dir, Addr: c.Addr, InFlight: c.InFlight, Payments: c.Payments, Seed: c.Seed,
		Processes: c.Processes, NoLoad: c.NoLoad, Unprotected: c.Unprotected,
	}, out)
}

// demoProgram is what this program adds to the demo: all stores, and metrics.
func demoProgram() rehearsal.Program {
	return rehearsal.Program{
		GoRun: "go run ./cmd/onceward", Command: "demo", Child: "demo-child", Servers: demostore.Servers{},
		Monitor: func() (payments.Monitor, error) { return monitor.New(monitor.Config{Export: time.Second}) },
	}
}

// demoChild is one of several processes of a demo. Only the demo starts it.
type demoChild struct{}

// Run serves until the standard input ends.
func (demoChild) Run(ends interrupts, out io.Writer) error {
	return rehearsal.Child(ends.first, ends.second, demoProgram(), os.Stdin, out)
}
