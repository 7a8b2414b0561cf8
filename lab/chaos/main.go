// Command chaos lets processes of the reference payments system be killed, paused, cut off and put off by an hour
// while clients go on, and then checks that none of the promises was broken: RELIABILITY's invariants I1 to I13, from
// what the clients were told, what the nodes wrote, what the store holds and what the providers did.
//
//	go run ./lab/chaos -store postgres -time 10m -seed 7
//	go run ./lab/chaos mutants -seeds 3
//	go run ./lab/chaos soak -store sqlite -hours 0.5 -dir soak
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/lab/chaos/internal/node"
	"github.com/onceward/onceward/lab/chaos/internal/world"
)

func main() {
	if ran, err := node.Main(); ran {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // who interrupts twice means it
	err := command(ctx, os.Args[1:], os.Stdout)
	if closed := servers.CloseAll(); closed != nil {
		fmt.Fprintln(os.Stderr, "chaos:", closed)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// command is the command line: a run, or what its first word names.
func command(ctx context.Context, args []string, out io.Writer) error {
	switch {
	case len(args) > 0 && args[0] == "mutants":
		return mutants(ctx, args[1:], out)
	case len(args) > 0 && args[0] == "soak":
		return soakCommand(ctx, args[1:], out)
	default:
		return chaos(ctx, args, out)
	}
}

// errViolated is returned when a promise was broken.
var errViolated = errors.New("promises were broken")

// chaos is a command line: one run on each store that it names.
func chaos(ctx context.Context, args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(out)
	stores := flags.String("store", "sqlite,postgres",
		"stores to run on, with commas between them: "+strings.Join(world.Stores, ", "))
	flags.IntVar(&o.Replicas, "replicas", 0,
		"how many replicas must have a write of redis-cluster before it counts (WAIT)")
	flags.DurationVar(&o.Time, "time", time.Minute, "how long faults happen on each store")
	flags.Uint64Var(&o.Seed, "seed", 0, "seed of faults and requests (default: drawn)")
	flags.Func("isolation", "level of the transactions on PostgreSQL and MariaDB: read-committed, repeatable-read or "+
		"serializable (default: the database's own)", o.setIsolation)
	flags.IntVar(&o.Clients, "clients", 24, "number of clients")
	flags.DurationVar(&o.Every, "every", 700*time.Millisecond, "time between two faults")
	only := flags.String("faults", "", "faults to let happen, with commas between them (default: all)")
	flags.BoolVar(&o.Clocks, "clocks", true, "shift the clocks of nodes, for which a program is built first")
	flags.BoolVar(&o.Brief, "brief", false, "end the faults when the time is over, also if some have not happened yet")
	flags.StringVar(&o.Keep, "keep", "", "directory to keep the history, the ledgers and logs of the nodes in")
	flags.DurationVar(&o.Settle, "settle", 2*time.Minute, "how long everything may take to be quiet after the last fault")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.Every <= 0 || o.Clients <= 0 {
		return errors.New("-every and -clients must be above zero")
	}
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	if o.Seed == 0 {
		o.Seed = 1 + rand.Uint64N(1_000_000)
	}
	violated := false
	for _, store := range strings.Split(*stores, ",") {
		if !slices.Contains(world.Stores, store) {
			return fmt.Errorf("no store is called %q: use %s", store, strings.Join(world.Stores, ", "))
		}
		o.Store = store
		r, err := o.run(ctx, out)
		if err != nil {
			return fmt.Errorf("%s, seed %d: %w", store, o.Seed, err)
		}
		r.print(out)
		violated = violated || len(r.violations) > 0
	}
	if violated {
		return errViolated
	}
	return nil
}
