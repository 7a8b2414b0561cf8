package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/watchdog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

var errDown = errors.New("down for a moment")

// purged is a store that has nothing but old events to purge. It fails with err in the step that purges the last.
type purged struct {
	inbox.Store
	old, steps int
	err        error
}

func (p *purged) PurgeEvents(_ context.Context, _ time.Duration, limit int) (int, error) {
	p.steps++
	n := min(p.old, limit)
	if p.old -= n; p.old == 0 {
		return n, p.err
	}
	return n, nil
}

// TestPurgeInBatches: it continues until nothing is left that is old enough, and returns how much it was.
func TestPurgeInBatches(t *testing.T) {
	t.Parallel()
	store := &purged{old: 2500}
	if n, err := inbox.New(store).Purge(t.Context(), time.Hour); n != 2500 || err != nil || store.steps != 3 {
		t.Errorf("purged were %d in %d steps, %v", n, store.steps, err)
	}
	store = &purged{old: 1500, err: errDown}
	if n, err := inbox.New(store).Purge(t.Context(), time.Hour); n != 1500 || !errors.Is(err, errDown) {
		t.Errorf("purged were %d, %v", n, err)
	}
}
