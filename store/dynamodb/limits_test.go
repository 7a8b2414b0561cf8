package dynamodb_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/dynamodb"
)

// TestFullItem: an operation carries as much as the store takes. It can be completed, released, abandoned and swept all
// the same: none of them is too large, or the key would be locked for ever (I13).
func TestFullItem(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	s, later := open(t, where), open(t, where)
	later.SetClock(func() time.Time { return time.Now().Add(time.Hour) })
	ctx := t.Context()
	long := strings.Repeat("why ", 1<<8)
	for _, test := range []struct {
		name string
		end  func(c store.Claim) error
		want store.State
	}{
		{"complete", func(c store.Claim) error {
			_, err := s.Complete(ctx, c, answer(strings.Repeat("x", 8<<10)))
			return err
		}, store.StateCompleted},
		{"release", func(c store.Claim) error { return s.Release(ctx, c, long) }, store.StateRetryable},
		{"abandon", func(c store.Claim) error { return s.Abandon(ctx, c, long) }, store.StateUnknown},
		{"sweep", func(store.Claim) error { _, err := later.Sweep(ctx, 100); return err }, store.StateUnknown},
	} {
		c := claimOf(reserve(t, s, request(test.name), store.DecisionExecute))
		fits, tooLarge := 300<<10, 401<<10
		for tooLarge-fits > 1 {
			size := (fits + tooLarge) / 2
			err := s.Checkpoint(ctx, c, store.Checkpoint{Point: "charged", Data: make([]byte, size)})
			if errors.Is(err, dynamodb.ErrTooLarge) {
				tooLarge = size
				continue
			}
			must(t, err)
			fits = size
		}
		if err := test.end(c); err != nil {
			t.Errorf("%s: with %d bytes carried: %v", test.name, fits, err)
		}
		if rec, err := s.Get(ctx, c.ID); err != nil || rec.State != test.want {
			t.Errorf("I13: %s: with %d bytes carried it is %s (%v), want %s", test.name, fits, rec.State, err, test.want)
		}
	}
}

// TestFullStep: a step that carries too much is refused with all that it has collected.
func TestFullStep(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	s, rows := open(t, where), newBusiness(t, where)
	c := claimOf(reserve(t, s, request("key"), store.DecisionExecute))
	err := s.CheckpointTx(t.Context(), c, time.Minute, func(ctx context.Context) (store.Checkpoint, error) {
		return store.Checkpoint{Point: "charged", Data: make([]byte, 390<<10)}, rows.insert(ctx, "charged")
	})
	refused := errors.Is(err, store.ErrWorkRefused) && errors.Is(err, dynamodb.ErrTooLarge)
	if n := rows.count("charged"); n != 0 || !refused {
		t.Errorf("got %v and %d rows, want ErrWorkRefused, ErrTooLarge and none", err, n)
	}
}

// TestLargeHeader: an answer whose header does not fit is not kept, and not executed again (A4).
func TestLargeHeader(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	large := answer("done")
	large.Response.Header = append(large.Response.Header,
		store.HeaderField{Name: "Link", Value: strings.Repeat("x", 500<<10)})
	c := claimOf(reserve(t, s, request("key"), store.DecisionExecute))
	for range 2 { // the second repeats the first, whose reply might have been lost
		_, err := s.Complete(t.Context(), c, large)
		must(t, err)
	}
	if v := reserve(t, s, request("key"), store.DecisionReplay); !v.Record.Response.NotStored {
		t.Errorf("A4: it is kept as stored, with %d header fields", len(v.Record.Response.Header))
	}
	must(t, s.AddLateCompletion(t.Context(), store.LateCompletion{Claim: c, At: time.Now(), Response: large.Response}))
}
