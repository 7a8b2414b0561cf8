package outbox_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

// silent is a store whose machine vanishes without a word: the first call of each kind gets no answer.
type silent struct {
	*sqlite.Store
	claims, frees, purges atomic.Int64
}

// first waits for the end of the context in the first of several calls.
func first(ctx context.Context, calls *atomic.Int64) error {
	if calls.Add(1) > 1 {
		return nil
	}
	<-ctx.Done()
	return errDown
}

func (s *silent) ClaimMessages(ctx context.Context, wants []outbox.ClaimRequest, lease time.Duration) ([]outbox.Claimed, error) {
	if err := first(ctx, &s.claims); err != nil {
		return nil, err
	}
	return s.Store.ClaimMessages(ctx, wants, lease)
}

func (s *silent) FreeMessages(ctx context.Context) (int, error) {
	if err := first(ctx, &s.frees); err != nil {
		return 0, err
	}
	return s.Store.FreeMessages(ctx)
}

func (s *silent) PurgeMessages(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := first(ctx, &s.purges); err != nil {
		return 0, err
	}
	return s.Store.PurgeMessages(ctx, age, limit)
}

// TestNoAnswerDoesNotStopAWorker: a worker gives up what the store does not answer, and goes on.
func TestNoAnswerDoesNotStopAWorker(t *testing.T) {
	inTime(t, func(b *bench) {
		store, mail := &silent{Store: b.store}, new(clerk)
		stop := b.start(b.worker(store, outbox.Route{Handler: mail.deliver}))
		ids := b.add(about("", "while it claims"))
		time.Sleep(10 * time.Minute)
		ids = append(ids, b.add(about("", "later"))...)
		time.Sleep(time.Minute)
		b.wantStates("O2", ids, outbox.StateDone, outbox.StateDone)
		for kind, calls := range map[string]*atomic.Int64{"claimed": &store.claims, "freed": &store.frees, "purged": &store.purges} {
			if calls.Load() < 2 {
				b.Errorf("nothing was %s after the call that got no answer", kind)
			}
		}
		stop()
	})
}
