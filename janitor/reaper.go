package janitor

import (
	"context"

	"github.com/onceward/onceward/store"
)

// Reaper removes settled records past their expiry or, if it is soft, first marks them expired and removes them one
// retention later. What is in progress or unknown is never removed.
type Reaper struct {
	cfg   Config
	store store.Reaper
}

// NewReaper returns a reaper. The store must be a [store.Reaper]; if it is not, the error is [errors.ErrUnsupported].
func NewReaper(s store.Store, cfg Config) (*Reaper, error) {
	able, err := capability[store.Reaper](s, "reap")
	if err != nil {
		return nil, err
	}
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Reaper{cfg: cfg, store: able}, nil
}

// RunOnce reaps until there is nothing left to reap, and says how much it was. With an error it also says how much was
// reaped before.
func (r *Reaper) RunOnce(ctx context.Context) (Report, error) {
	report, err := inBatches(ctx, r.cfg.Batch, r.reap)
	if report.Count > 0 {
		r.cfg.Logger.DebugContext(ctx, "janitor: records expired", "count", report.Count)
	}
	r.cfg.Observer.Observe(ctx, ReapedEvent{Count: report.Count})
	return report, err
}

func (r *Reaper) reap(ctx context.Context, limit int) (int, error) {
	return r.store.Reap(ctx, limit, r.cfg.Soft)
}

// Run reaps now and then until the context ends. Failures are logged, and it goes on.
func (r *Reaper) Run(ctx context.Context) {
	r.cfg.loop(ctx, "reap", r.RunOnce)
}
