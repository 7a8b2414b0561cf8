// Command demo is the first program to run of Onceward: a payments system on an SQLite file, with
// clients and a provider that fail. At the end it counts the charges, and how often each was made.
//
//	go run -C demo .
//
// The demo is a separate module with its own go.work, so that the go command downloads and compiles
// little more than SQLite. `onceward demo` is the same program with all stores, and with metrics.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/onceward/onceward/demo/rehearsal"
	"github.com/onceward/onceward/internal/interrupt"
)

// child is the only argument of a process that another process of the demo has started.
const child = "child"

// These are the exit codes: for a problem, and for a command line that is not valid.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	program := rehearsal.Program{GoRun: "go run -C demo .", Child: child}
	first, second := interrupt.Listen()
	if len(os.Args) == 2 && os.Args[1] == child {
		end(rehearsal.Child(first, second, program, os.Stdin, os.Stdout))
	}
	config, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case err != nil: // the flags have printed the error
		os.Exit(exitUsage)
	}
	end(rehearsal.Run(first, second, program, config, os.Stdout))
}

// end ends the program, and prints the error.
func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(exitFailed)
	}
	os.Exit(0)
}

// parse reads the command line.
func parse(args []string) (c rehearsal.Config, err error) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), "A payments system under clients and a provider that fail, and a count of what came of it.\n\nFlags:\n")
		flags.PrintDefaults()
	}
	flags.IntVar(&c.Payments, "payments", rehearsal.DefaultPayments,
		"how many `payments` the clients ask for; refunds and bookings are added")
	flags.Uint64Var(&c.Seed, "seed", 0,
		"repeat the load of an earlier run by its `seed`, and its faults except those that depend on time (default a random one)")
	flags.IntVar(&c.Processes, "processes", 1,
		"how many `processes` serve; of several, each is killed and restarted, and one is paused past its lease")
	flags.StringVar(&c.Dir, "dir", "",
		"`directory` for the data, kept over a restart (default a temporary one, removed at the end)")
	flags.BoolVar(&c.Unprotected, "unprotected", false,
		"the same load and faults without Onceward, to see what happens then")
	flags.BoolVar(&c.NoLoad, "no-load", false, "only serve, and print what to try with curl")
	flags.StringVar(&c.Addr, "addr", "",
		"`address` to listen on; port 0 takes a free one (default 127.0.0.1:8080 with --no-load, a free port otherwise)")
	flags.StringVar(&c.InFlight, "in-flight", "conflict",
		"`answer` to a duplicate of a request in flight: conflict, wait or accepted")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if flags.NArg() > 0 {
		err := fmt.Errorf("unknown argument %q", flags.Arg(0))
		fmt.Fprintln(flags.Output(), err)
		flags.Usage()
		return c, err
	}
	if c.Dir != "" {
		c.Dir, err = filepath.Abs(c.Dir) // the go command has changed the directory
	}
	return c, err
}
