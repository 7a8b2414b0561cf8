package unknown_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"testing"
	"time"

	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store/sqlite"
)

// provider is a ledger with one effect an hour, which can be down.
type provider struct {
	from time.Time
	down bool
}

const effects = 98

// list is the [ledger.Source] of the provider.
func (p *provider) list(_ context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
	return func(yield func(ledger.Entry, error) bool) {
		if p.down {
			yield(ledger.Entry{}, errors.New("the test pulled the plug"))
			return
		}
		for i := range effects {
			e := ledger.Entry{Key: fmt.Sprintf("e%04d", i), At: p.from.Add(time.Duration(i) * time.Hour)}
			if e.At.Before(w.From) || !e.At.Before(w.To) || e.Key <= after {
				continue
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

func nothing(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
	return func(func(ledger.Entry, error) bool) {}
}

// TestProgressOutlivesTheProcess, in a real file: the windows that failed in the first run, with the store opened and
// closed each time, are compared by those that follow.
func TestProgressOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	began := time.Now().Truncate(time.Hour)
	side := &provider{from: began.Add(-100 * time.Hour)}
	found := make(map[string]bool)
	for i := range 12 {
		s, err := sqlite.Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		config := ledger.Config{
			Name: "test", Logger: quiet, Provider: side.list, Local: nothing,
			Interval: time.Hour, Settle: time.Second, MinBackoff: time.Microsecond,
			Report: func(_ context.Context, f ledger.Finding) error {
				found[f.ID] = true
				return nil
			},
		}
		if i == 0 {
			config.Since = began.Add(-101 * time.Hour)
		}
		side.down = i == 0
		comparer, err := ledger.NewComparer(s, config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := comparer.RunOnce(t.Context()); err != nil && i > 0 {
			t.Error(err)
		}
		status, err := comparer.Status(t.Context())
		due := status.Uncompared
		if err != nil || i == 0 && (len(due) < 99 || due[0].Attempts != 1) || i == 11 && len(due) != 0 {
			t.Errorf("run %d: uncompared are %d windows: %+v, %v", i, len(due), due[:min(1, len(due))], err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(found) != effects {
		t.Errorf("%d findings were reported, want one for each of %d effects", len(found), effects)
	}
}
