package janitor

import (
	"context"

	"github.com/onceward/onceward/store"
)

// Sweeper makes unknown what is still in progress when its lease has run out: its owner was lost, and only a reconciler or
// a person can say what it did. What its route resumes is left to the resumer.
type Sweeper struct {
	cfg   Config
	store store.Sweeper
}

// NewSweeper returns a sweeper. The store must be a [store.Sweeper]; if it is not, the error is
// [errors.ErrUnsupported].
func NewSweeper(s store.Store, cfg Config) (*Sweeper, error) {
	able, err := capability[store.Sweeper](s, "sweep")
	if err != nil {
		return nil, err
	}
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Sweeper{cfg: cfg, store: able}, nil
}

// RunOnce sweeps until there is nothing left to sweep, and says how much it was. With an error it also says how much was
// swept before.
func (s *Sweeper) RunOnce(ctx context.Context) (Report, error) {
	report, err := inBatches(ctx, s.cfg.Batch, s.store.Sweep)
	if report.Count > 0 {
		s.cfg.Logger.WarnContext(ctx, "janitor: leases ran out, their outcomes are unknown", "count", report.Count)
	}
	s.cfg.Observer.Observe(ctx, SweptEvent{Count: report.Count})
	return report, err
}

// Run sweeps now and then until the context ends. Failures are logged, and it goes on.
func (s *Sweeper) Run(ctx context.Context) {
	s.cfg.loop(ctx, "sweep", s.RunOnce)
}
