package rehearsal

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/onceward/onceward/demo/internal/load"
	"github.com/onceward/onceward/demo/internal/screen"
	"github.com/onceward/onceward/demo/internal/verdict"
)

var (
	errInterrupted = errors.New("interrupted, no verdict")
	errBroken      = errors.New("the verdict is that something is broken")
	errShown       = errors.New("this is what was to be shown: without Onceward it goes wrong, hence the exit status 1")
)

const (
	// newClient is the time between the starts of two clients: two cores can easily serve 200 in a second.
	newClient = 5 * time.Millisecond
	atOnce    = 32
	// loadLimit limits the time of the whole load. A client without an answer by then gets none.
	loadLimit = 3 * time.Minute
)

// plan is the orders of a run's clients. All keys of the run begin with its name.
type plan struct {
	run    string
	orders []load.Order
}

// plan draws the orders, and announces them before anything else happens.
func (w *world) plan(out io.Writer) *plan {
	run := "run-" + strings.ToLower(rand.Text()[:8])
	orders := load.Plan(run, w.config.Seed, w.config.Payments)
	asked := load.Asked(orders)
	how := "protected by Onceward"
	if w.config.Unprotected {
		how = "WITHOUT Onceward"
	}
	fmt.Fprintf(out, "Onceward demo: %s, %s and %s, %s, seed %d.\n",
		load.Payment.Count(asked[load.Payment]), load.Refund.Count(asked[load.Refund]),
		load.Booking.Count(asked[load.Booking]), how, w.config.Seed)
	fmt.Fprintln(out, "Clients lose connections and retry; the provider times out, fails and resets connections.")
	if w.config.Processes > 1 {
		fmt.Fprintf(out, "Each of %d processes is killed and started again, and one is %s.\n", w.config.Processes, w.paused())
	}
	return &plan{run, orders}
}

// perform runs the load against the system, and judges the result.
func (w *world) perform(ctx, hurry context.Context, plan *plan, out io.Writer) error {
	w.node.Log = w.dir.file("system.log")
	fleet, err := startFleet(ctx, w.program, w.node, w.config.Processes, w.aim)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "The records are on %s.\nServed at %s\n\n", w.place.called(), strings.Join(fleet.urls(), " "))
	evidence, err := w.rehearse(ctx, out, fleet, plan.orders)
	// Before the ledger is read, nothing may be running that could change it.
	if err := errors.Join(err, fleet.close(hurry), w.provider.Close()); err != nil {
		return err
	}
	evidence.Run = plan.run
	if evidence.Ledger, err = verdict.ReadLedger(w.ledger()); err != nil {
		return err
	}
	judged := verdict.Judge(evidence)
	judged.Write(out)
	w.repeat(out)
	switch {
	case judged.Sound():
		return nil
	case w.config.Unprotected:
		return errShown
	default:
		return errBroken
	}
}

// rehearse runs the clients, the faults and the havoc at the same time,
// waits until everything is settled, and returns the clients' notes.
func (w *world) rehearse(
	ctx context.Context, out io.Writer, fleet *fleet, plan []load.Order,
) (verdict.Evidence, error) {
	clients := load.New(load.Config{
		Plan: plan, Seed: w.config.Seed, Targets: fleet.urls, Every: newClient, AtOnce: atOnce,
	})
	wreck := &havoc{fleet: fleet, progress: clients.Progress, pauseFor: w.pauseFor()}
	watch := &watcher{
		screen: screen.New(out), load: clients, fleet: fleet, provider: w.provider, havoc: wreck,
		started: time.Now(), unprotected: w.config.Unprotected, paused: w.paused(),
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var watching sync.WaitGroup
	watchFor, endWatch := context.WithCancel(ctx)
	watch.say("")
	watching.Go(func() { watch.run(watchFor) })
	watching.Go(func() {
		select {
		case err := <-fleet.broken:
			stop(err)
		case <-watchFor.Done():
		}
	})
	evidence, err := w.run(ctx, watch)
	endWatch()
	watching.Wait()
	if err != nil {
		return evidence, err
	}
	watch.say("done")
	watch.screen.End(watch.numbers(ctx))
	fmt.Fprintln(out)
	watch.listFaults()
	fmt.Fprintln(out)
	return evidence, nil
}

// run runs the load and the havoc, and waits until everything is settled.
func (w *world) run(ctx context.Context, watch *watcher) (e verdict.Evidence, err error) {
	limit, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	wrecked := make(chan error, 1)
	go func() { wrecked <- watch.havoc.run(limit) }()
	e.Notes = watch.load.Run(limit)
	if err := cmp.Or(context.Cause(ctx), <-wrecked); err != nil {
		return e, err
	}
	watch.say("settling")
	open := settle(ctx, watch.fleet)
	e.Unknown = open.Unknown
	return e, context.Cause(ctx)
}

// pauseFor returns a time longer than the lease, so that a process that was paused has lost what it believes it owns.
func (w *world) pauseFor() time.Duration { return w.config.timing().Lease + time.Second }

// paused describes what happens to the process that is paused. Without Onceward there is no lease.
func (w *world) paused() string {
	if w.config.Unprotected {
		return fmt.Sprintf("paused for %s", w.pauseFor())
	}
	return "paused past its lease"
}

// repeat prints how to run this demo again, and how much of it will be the same.
func (w *world) repeat(out io.Writer) {
	line, hint := w.again(fmt.Sprintf("--seed %d", w.config.Seed), fmt.Sprintf("--payments %d", w.config.Payments))
	if hint != "" {
		hint = ", " + hint
	}
	fmt.Fprintf(out, "The same load and faults again%s:\n  %s\n", hint, line)
	fmt.Fprintln(out, "Some faults may differ in number, because retries depend on timing.")
}
