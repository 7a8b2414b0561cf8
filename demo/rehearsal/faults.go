package rehearsal

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/demo/internal/load"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/proc"
)

// providerFaults returns the faults at the provider and on the way to it. They also affect the
// look-ups of the system. A timeout has no delay of its own: it ends when the system gives up.
func providerFaults(seed uint64) provider.Faults {
	return provider.Faults{Seed: seed, Rules: []provider.Rule{
		{Kind: provider.TimeoutBefore, Rate: 0.015},
		{Kind: provider.TimeoutAfter, Rate: 0.015},
		{Kind: provider.ResetBefore, Rate: 0.015},
		{Kind: provider.ResetAfter, Rate: 0.015},
		{Kind: provider.ErrorBefore, Rate: 0.015, Status: 503},
		{Kind: provider.ErrorBefore, Rate: 0.01, Status: 500},
		{Kind: provider.ErrorAfter, Rate: 0.015, Status: 502},
		{Kind: provider.Delay, Rate: 0.03, Delay: 100 * time.Millisecond},

		{Kind: provider.WebhookDuplicate, Rate: 0.05},
		{Kind: provider.WebhookDrop, Rate: 0.10},
		{Kind: provider.WebhookReordered, Rate: 0.05, Delay: 300 * time.Millisecond},
		{Kind: provider.WebhookDelay, Rate: 0.05, Delay: 300 * time.Millisecond},
		{Kind: provider.WebhookFirst, Rate: 0.03},
	}}
}

// havoc kills each process once, one after the other. In the middle it pauses one process for longer than its
// lease: when the process resumes, it believes that it still owns operations that other processes have taken over.
type havoc struct {
	fleet    *fleet
	progress func() load.Progress
	pauseFor time.Duration

	kills, pauses atomic.Int64
}

// run executes its steps spread over the load, and returns when they are done.
// If there is only one process, it does nothing: that process is this one.
func (h *havoc) run(ctx context.Context) error {
	if len(h.fleet.members) == 1 {
		return nil
	}
	var steps []func(context.Context) error
	for i, m := range h.fleet.members {
		steps = append(steps, func(ctx context.Context) error { return h.kill(ctx, m) })
		if i == 0 && proc.CanPause {
			steps = append(steps, func(ctx context.Context) error { return h.pause(ctx, m) })
		}
	}
	for i, step := range steps {
		if !h.await(ctx, i+1, len(steps)+1) {
			return nil
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// await waits until a share of the load is answered, and reports whether it was.
func (h *havoc) await(ctx context.Context, part, parts int) bool {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		if p := h.progress(); p.Answered*parts >= p.Total*part {
			return true
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
	}
}

// kill kills a process, and starts a new one in its place.
func (h *havoc) kill(ctx context.Context, m *member) error {
	victim := m.current().(*process)
	m.retire(ctx)
	if err := victim.kill(); err != nil {
		return fmt.Errorf("kill a process: %w", err)
	}
	h.kills.Add(1)
	return h.fleet.start(m, func() (runner, error) { return startProcess(h.fleet.program, h.fleet.config) })
}

// pause pauses a process until its leases have expired.
func (h *havoc) pause(ctx context.Context, m *member) error {
	sleeper := m.current().(*process)
	if err := sleeper.Pause(); err != nil {
		return fmt.Errorf("pause a process: %w", err)
	}
	h.pauses.Add(1)
	select {
	case <-time.After(h.pauseFor):
	case <-ctx.Done():
	}
	return sleeper.Resume()
}
