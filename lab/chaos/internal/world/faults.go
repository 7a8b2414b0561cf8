package world

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/lab/chaos/internal/node"
)

// Fault is something that happens to the world, and is over when Fire returns.
type Fault struct {
	Name string
	Fire func(ctx context.Context) error
}

var (
	// errNotFired is returned by a fault that met no target, and errOften by one that has happened often enough.
	errNotFired = errors.New("the fault met no target")
	errOften    = errors.New("the fault has happened often enough")
)

// Faults are what happens to this world: all that can, or those that were chosen.
func (w *World) Faults() []Fault {
	return slices.DeleteFunc(w.possible(), func(f Fault) bool { return !w.has(f.Name) })
}

// has reports whether a fault is among those that were chosen.
func (w *World) has(fault string) bool { return w.Only == nil || slices.Contains(w.Only, fault) }

// checkOnly refuses faults that do not exist: a run without any would look like a success.
func (w *World) checkOnly() error {
	var names []string
	for _, fault := range w.possible() {
		names = append(names, fault.Name)
	}
	for _, name := range w.Only {
		if !slices.Contains(names, name) {
			return fmt.Errorf("no fault on %s is called %q: there are %s", w.Store, name, strings.Join(names, ", "))
		}
	}
	return nil
}

// possible are the faults that this world can have.
func (w *World) possible() []Fault {
	faults := []Fault{
		{"server-kill", func(context.Context) error { return pick(w, w.servers).Restart(w.short(), nil) }},
		{"worker-kill", func(context.Context) error { return pick(w, w.workers).Restart(w.short(), nil) }},
		{"server-pause", func(context.Context) error { return pick(w, w.servers).Sleep(w.pastLease()) }},
		{"worker-pause", func(context.Context) error { return pick(w, w.workers).Sleep(w.pastLease()) }},
		{"caller-kill", w.killCallers},
		{"caller-pause", func(context.Context) error { return pick(w, w.callers).Sleep(w.pastLease()) }},
		{"provider-kill", w.killProvider},
		{"request-cut", w.onWire(&w.fronts, resetting, toServer, 200*time.Millisecond)},
		{"reply-cut", w.onWire(&w.fronts, cutShort, fromServer, 400*time.Millisecond)},
		{"packets-slow", w.onWire(&w.fronts, slow, fromServer, time.Second)},
		{"packets-trickle", w.onWire(&w.fronts, trickling, toServer, time.Second)},
		{"packets-lost", w.onWire(&w.fronts, losing, toServer, 500*time.Millisecond)},
		{"provider-packets-lost", w.onWire(&w.providers, losing, fromServer, 500*time.Millisecond)},
		{"provider-cut", w.onWire(&w.providers, resetting, fromServer, 300*time.Millisecond)},
		{"deploy", w.deploy},
	}
	if !w.Plain() {
		faults = append(faults, []Fault{
			{"clock-step", w.stepClock},
			{"clock-leap", w.leapClock},
			{"stray-effect", w.strayEffect},
			{"stray-row", w.strayRow},
		}...)
	}
	if w.Shifted != "" {
		faults = append(faults, Fault{"node-clock-shift", w.shiftNode})
	}
	return append(faults, w.database.faults()...)
}

// short is how long a node stays down.
func (w *World) short() time.Duration { return w.between(20*time.Millisecond, 500*time.Millisecond) }

// pastLease is how long a node sleeps: mostly for longer than its leases last.
func (w *World) pastLease() time.Duration {
	return w.between(node.Timing.Lease/2, node.Timing.Lease*2)
}

func (w *World) onWire(wires *[]*wire, how trouble, direction int, length time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		pick(w, *wires).suffer(ctx, how, direction, length)
		return nil
	}
}

// killCallers kills callers several times in a row: what one was at, the next lives find in its outbox.
func (w *World) killCallers(context.Context) error {
	for range 4 {
		if err := pick(w, w.callers).Restart(w.short(), nil); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) killProvider(ctx context.Context) error {
	p := pick(w, []*Process{w.acquirer, w.bank})
	w.noteStruck(ctx, p)
	hook := w.webhook()
	return p.Restart(w.short(), func(p *Process) {
		p.settings.Provider.Webhook = hook
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.told, p)
	})
}

// deploy starts a node again with the other generation of the program. The last worker always has the newer one: what
// a newer program began only a newer one can end.
func (w *World) deploy(context.Context) error {
	return pick(w, w.nodes()[:len(w.servers)+len(w.workers)-1]).Restart(w.short(), func(p *Process) {
		p.settings.Generation = 3 - p.settings.Generation
	})
}

// ShiftVariable is the environment variable that puts the clock of a shifted program off, in seconds.
const ShiftVariable = "ONCEWARD_CHAOS_CLOCK_SECONDS"

// shiftNode starts a node again whose own clock is an hour behind or ahead; one whose clock is off gets the right
// time back.
func (w *World) shiftNode(context.Context) error {
	offset := pick(w, []string{"-3600", "3600"})
	return pick(w, w.nodes()).Restart(w.short(), func(p *Process) {
		if p.environment != nil {
			p.program, p.environment = w.Program, nil
			return
		}
		p.program, p.environment = w.Shifted, []string{ShiftVariable + "=" + offset}
	})
}

// misbehaviour is what the providers do to a part of the requests, all the time.
var misbehaviour = map[provider.Kind]float64{
	provider.TimeoutBefore: 0.01, provider.TimeoutAfter: 0.02, provider.ErrorBefore: 0.02, provider.ErrorAfter: 0.02,
	provider.ResetBefore: 0.02, provider.ResetAfter: 0.03, provider.Delay: 0.03,
	provider.WebhookDuplicate: 0.1, provider.WebhookDrop: 0.3, provider.WebhookReordered: 0.1, provider.WebhookFirst: 0.05,
}

func providerFaults(seed uint64) provider.Faults {
	return provider.RandomFaults(seed, 2*time.Second, misbehaviour)
}

// Chances names the faults that strike by chance, so that only a longer run has them all: those of clients and
// providers, and that a request meets a slot that has moved. On a plain store nothing is known that a webhook could be
// about.
func (w *World) Chances() []string {
	names := []string{"client-leaves"}
	if !w.Plain() {
		names = append(names, "webhook-foreign")
	}
	if w.Store == Cluster {
		names = append(names, metMoved)
	}
	for kind := range misbehaviour {
		if !w.Plain() || !strings.HasPrefix(string(kind), "webhook") {
			names = append(names, struckName(kind))
		}
	}
	return names
}

func struckName(kind provider.Kind) string { return "provider " + string(kind) }

// noteStruck keeps what a provider did since it was asked last. It forgets it when it dies.
func (w *World) noteStruck(ctx context.Context, p *Process) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	stats, err := (&provider.Client{URL: p.URL()}).Stats(asking)
	if err != nil {
		return // it is only for the report
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for kind, n := range stats {
		w.struck[struckName(kind)] += n - w.told[p][kind]
	}
	w.told[p] = stats
}

// Struck counts the faults so far, by name.
func (w *World) Struck() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := maps.Clone(w.faults)
	maps.Copy(all, w.struck)
	return all
}

// fireWithin is how long a fault is repeated that meets no target: what it was meant for may just be down.
const fireWithin = 10 * time.Second

// atOnce is how many faults happen at one time.
const atOnce = 3

// Nemesis lets faults happen for a time, or until the context ends, and returns when all of them are over. It goes
// through all of them in an order that the seed shuffles, and then again: each happens as often as any other, and at
// least once unless the run is to be brief.
func (w *World) Nemesis(ctx context.Context, length, every time.Duration) error {
	timed, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	random := rand.New(rand.NewPCG(w.Seed+w.windows, 3))
	faults := w.Faults()
	failed := make(chan error, 1)
	running := make(chan struct{}, atOnce)
	for first := !w.Brief; ctx.Err() == nil && (first || timed.Err() == nil); first = false {
		random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, fault := range faults {
			pause(ctx, every/2+time.Duration(random.Int64N(int64(every))))
			if ctx.Err() != nil || timed.Err() != nil && !first {
				break
			}
			running <- struct{}{}
			go func() {
				defer func() { <-running }()
				w.fire(context.WithoutCancel(ctx), fault, failed)
			}()
		}
	}
	for range cap(running) {
		running <- struct{}{}
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// Round is how long it takes until each fault has happened once.
func (w *World) Round(every time.Duration) time.Duration {
	round := time.Duration(len(w.Faults())) * (every + longestFault/atOnce)
	if fleet, ok := w.database.(interface{ queued() time.Duration }); ok {
		round += fleet.queued()
	}
	return round
}

// longestFault is how long a fault takes at most, on a machine that is not too busy.
const longestFault = 10 * time.Second

// Busy names the faults that happen at present.
func (w *World) Busy() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for name, n := range w.firing {
		if n > 0 {
			names = append(names, "the fault "+name)
		}
	}
	if len(names) == 0 {
		return "no fault"
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// note counts a fault that begins or ends.
func (w *World) note(name string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.firing[name] += n
}

func (w *World) fire(ctx context.Context, fault Fault, failed chan<- error) {
	w.note(fault.Name, 1)
	defer w.note(fault.Name, -1)
	err := fault.Fire(ctx)
	for began := time.Now(); errors.Is(err, errNotFired) && time.Since(began) < fireWithin; {
		pause(ctx, 200*time.Millisecond)
		err = fault.Fire(ctx)
	}
	if errors.Is(err, errNotFired) || errors.Is(err, errOften) {
		return
	}
	if err != nil {
		select {
		case failed <- errors.Join(errors.New("the fault "+fault.Name+" failed"), err):
		default: // the first is enough
		}
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[fault.Name]++
}
