package rehearsal

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/demo/internal/load"
	"github.com/onceward/onceward/demo/internal/screen"
	"github.com/onceward/onceward/examples/provider"
)

// watcher shows the progress of the run.
type watcher struct {
	screen   *screen.Screen
	load     *load.Load
	fleet    *fleet
	provider *provider.Server
	havoc    *havoc
	started  time.Time
	// doing is the current activity.
	doing       atomic.Pointer[string]
	unprotected bool
	// paused describes what happens to one process.
	paused string
	// open is the latest known open work.
	open openWork
}

const redraw = 200 * time.Millisecond

// run shows the numbers until the context ends.
func (w *watcher) run(ctx context.Context) {
	ticker := time.NewTicker(redraw)
	defer ticker.Stop()
	for {
		w.screen.Show(w.numbers(ctx))
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (w *watcher) say(doing string) { w.doing.Store(&doing) }

// numbers reads all counters.
func (w *watcher) numbers(ctx context.Context) screen.Numbers {
	p := w.load.Progress()
	return screen.Numbers{
		Doing: *w.doing.Load(), Done: p.Answered, Total: p.Total, Elapsed: time.Since(w.started),
		Rows: append(w.rows(ctx, p, w.fleet.counts(ctx)), w.faults(p)...),
	}
}

func (w *watcher) rows(ctx context.Context, p load.Progress, counts map[string]int64) []screen.Row {
	sum := func(names ...string) (n int) {
		for _, name := range names {
			n += int(counts[name])
		}
		return n
	}
	unknown := sum("ended unknown", "swept")
	rows := []screen.Row{
		{Name: "requests", Value: p.Sent, Means: "sent by the clients, retries included"},
		{Name: "executions", Value: sum("executions"), Means: "handlers that ran"},
		{Name: "replays", Value: sum("decided replay"), Means: "retries that got the stored answer"},
		{Name: "conflicts", Value: sum("decided in_progress"), Means: "duplicates of a request that was still running"},
		{Name: "unknown", Value: unknown, Means: "attempts whose outcome was not known"},
		{
			Name: "settled", Value: max(0, unknown-w.stillUnknown(ctx)),
			Means: "of these, by asking the provider or by its webhook",
		},
		{Name: "charges", Value: sum("delivered done"), Means: "payments that the worker has had charged"},
	}
	if w.unprotected {
		return []screen.Row{rows[0], rows[len(rows)-1]} // the other rows are about Onceward
	}
	return rows
}

// stillUnknown queries the store. The counters would not do:
// several processes may settle the same operation at one time.
func (w *watcher) stillUnknown(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	for _, url := range w.fleet.urls() {
		var open openWork
		if err := getJSON(ctx, url+openPath, &open); err == nil {
			w.open = open
			break
		}
	}
	return w.open.Unknown
}

func (w *watcher) faults(p load.Progress) []screen.Row {
	clients, there := 0, 0
	for _, n := range p.Faults {
		clients += n
	}
	for _, n := range w.provider.Stats() {
		there += n
	}
	rows := []screen.Row{
		{Name: "client faults", Value: clients, Means: "left, cut off, sent twice"},
		{Name: "provider faults", Value: there, Means: "timeouts, resets, errors, delays, lost webhooks"},
	}
	if len(w.fleet.members) > 1 {
		rows = append(rows, screen.Row{
			Name: "process faults", Value: int(w.havoc.kills.Load() + w.havoc.pauses.Load()), Means: "killed, or " + w.paused,
		})
	}
	return rows
}

// listFaults prints the numbers of faults, by kind.
func (w *watcher) listFaults() {
	w.screen.List("Faults of clients:", list(w.load.Progress().Faults))
	w.screen.List("Faults of the provider:", list(w.provider.Stats()))
	if len(w.fleet.members) > 1 {
		w.screen.List("Faults of processes:", []string{
			fmt.Sprintf("%d killed", w.havoc.kills.Load()), fmt.Sprintf("%d %s", w.havoc.pauses.Load(), w.paused),
		})
	}
}

func list[K ~string](counts map[K]int) (parts []string) {
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[name], strings.ReplaceAll(string(name), "_", " ")))
	}
	return parts
}
