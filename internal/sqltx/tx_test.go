package sqltx_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// TestFlights: one transaction a record is under way at a time, and a transaction that was revoked does not end the next
// one.
func TestFlights(t *testing.T) {
	t.Parallel()
	var flights sqltx.Flights
	id := store.ID{Key: "key"}
	if flights.Has(id) || flights.Ended(id) != nil {
		t.Error("a transaction is under way before the first one")
	}
	first := flights.Enter(id)
	if first == nil || flights.Enter(id) != nil || !flights.Has(id) {
		t.Fatal("two transactions of one record are under way, or none")
	}
	ended := flights.Ended(id)
	flights.Leave(id, first)
	if _, open := <-ended; open {
		t.Error("the end is not reported")
	}
	second := flights.Enter(id)
	flights.Leave(id, first)
	if second == nil || !flights.Has(id) {
		t.Error("the end of the work of a revoked transaction ended the next one")
	}
}

// TestWaits: a wake ends all waits for its record, and nothing is kept afterwards.
func TestWaits(t *testing.T) {
	t.Parallel()
	var waits sqltx.Waits
	id, other := store.ID{Key: "key"}, store.ID{Key: "other"}
	a, b, c := waits.Watch(id), waits.Watch(id), waits.Watch(other)
	waits.Wake(id)
	<-a.Settled
	<-b.Settled
	again := waits.Watch(id) // which waits for another change
	waits.Leave(id, a)
	waits.Leave(id, b)
	select {
	case <-again.Settled:
		t.Error("a wait that began after the wake was ended by it")
	case <-c.Settled:
		t.Error("a wait for another record was ended")
	default:
	}
	if n := waits.Len(); n != 2 {
		t.Errorf("%d records are waited for, want 2", n)
	}
	waits.Leave(id, again)
	waits.Leave(other, c)
	if n := waits.Len(); n != 0 {
		t.Errorf("%d records are kept that no caller waits for", n)
	}
}

// TestHints: a watcher that is slow has one hint, and a watcher that has stopped gets none.
func TestHints(t *testing.T) {
	t.Parallel()
	var hints sqltx.Hints
	slow, stop := hints.Watch()
	gone, leave := hints.Watch()
	leave()
	hints.Wake()
	hints.Wake()
	if len(slow) != 1 || len(gone) != 0 {
		t.Errorf("%d and %d hints, want 1 and 0", len(slow), len(gone))
	}
	stop()
}

// TestSlots: a quarter of a pool is left free, and a change of the pool's size counts at the next transaction.
func TestSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		size := 0
		slots := sqltx.NewSlots(func() int { return size })
		take := func() func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			give, err := slots.Take(ctx, false)
			if err != nil && !errors.Is(err, sqltx.ErrExhausted) {
				t.Errorf("got %v, want ErrExhausted", err)
			}
			return give
		}
		first := take() // of a pool without a bound
		size = 4
		gives := []func(){first, take(), take()}
		if take() != nil {
			t.Error("four transactions of a pool of four")
		}
		if give, err := slots.Take(t.Context(), true); err != nil {
			t.Error("a transaction inside of another one waits for a slot")
		} else {
			give()
		}
		waited := make(chan func())
		go func() { waited <- take() }()
		synctest.Wait()
		size = 8 // six for transactions
		gives = append(gives, take(), <-waited, take())
		if take() != nil {
			t.Error("seven transactions of a pool of eight")
		}
		size = 4
		for _, give := range gives[:3] {
			give()
		}
		if take() != nil {
			t.Error("four transactions of a pool that has become one of four")
		}
		gives[3]()
		gives[3] = take()
		if gives[3] == nil {
			t.Fatal("no third transaction of a pool that has become one of four")
		}
		size = 1
		for _, give := range gives[3:] {
			give()
		}
		if take() == nil {
			t.Error("a pool of one has no transaction")
		}
	})
}

// revocable counts how often it was revoked.
type revocable struct {
	times atomic.Int64
	takes time.Duration
}

func (r *revocable) Revoke() {
	r.times.Add(1)
	time.Sleep(r.takes)
}

// TestLimit: the work or the timer ends a transaction, never both.
func TestLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			limit, takes time.Duration
			inTime       bool
			revoked      int64
		}{
			{0, time.Hour, true, 0},
			{time.Second, time.Second, true, 0},
			{time.Second, time.Second + sqltx.LateGrace - 1, true, 0},
			{time.Second, time.Second + sqltx.LateGrace + 1, false, 1},
			{time.Second, time.Hour, false, 1},
		} {
			var limit sqltx.Limit
			work := &revocable{takes: time.Minute}
			begin := time.Now()
			limit.Start(c.limit, work)
			time.Sleep(c.takes)
			if inTime := limit.Returned(); inTime != c.inTime || work.times.Load() != c.revoked {
				t.Errorf("work of %s with a limit of %s: in time %t, revoked %d times", c.takes, c.limit, inTime, work.times.Load())
			}
			if c.revoked > 0 && time.Since(begin) < c.limit+sqltx.LateGrace+work.takes {
				t.Errorf("work of %s returned before its transaction was revoked", c.takes)
			}
			if c.inTime == limit.Running() {
				t.Errorf("work of %s: a timer runs: %t", c.takes, limit.Running())
			}
			time.Sleep(time.Hour)
			if work.times.Load() != c.revoked {
				t.Errorf("work of %s was revoked after its end", c.takes)
			}
		}
	})
}

// open is a result that is closed with its gate.
type open struct{ closed atomic.Bool }

func (o *open) Close() { o.closed.Store(true) }

// TestGate: after its end a handler gets the reason, and what it left open is closed.
func TestGate(t *testing.T) {
	t.Parallel()
	var gate sqltx.Gate
	if err := gate.Enter(); err != nil {
		t.Fatal(err)
	}
	left, closed := new(open), new(open)
	gate.Keep(left)
	gate.Keep(closed)
	gate.Forget(closed)
	gate.Leave()
	gate.Close(silent)
	if !left.closed.Load() || closed.closed.Load() {
		t.Error("what was left open is not closed, or what was closed is closed again")
	}
	if err := gate.Enter(); !errors.Is(err, store.ErrTxOwned) {
		t.Errorf("a handler that has returned gets %v, want ErrTxOwned", err)
	}
}

// TestLateGate: a handler that has not returned is kept out, and its connection is taken only if no call uses it.
func TestLateGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		yes := func() bool { return true }
		var gate sqltx.Gate
		if err := gate.Enter(); err != nil {
			t.Fatal(err)
		}
		gate.Lock()
		if gate.Seize(silent, yes) || gate.SeizeCut(silent) {
			t.Error("the gate was seized while a call is under way")
		}
		time.AfterFunc(sqltx.QuietWait/2, gate.Leave)
		if !gate.SeizeCut(silent) {
			t.Error("the gate was not seized after the call that was cut")
		}
		if err := gate.Enter(); !errors.Is(err, store.ErrDeadline) {
			t.Errorf("a late handler gets %v, want ErrDeadline", err)
		}
		var reading sqltx.Gate
		if err := reading.Enter(); err != nil {
			t.Fatal(err)
		}
		reading.Keep(new(open))
		reading.Leave()
		reading.Lock()
		if reading.Seize(silent, yes) {
			t.Error("the gate was seized from a handler that reads rows")
		}
		var past sqltx.Gate
		past.Lock()
		if past.Seize(silent, func() bool { return false }) || !past.Seize(silent, yes) {
			t.Error("the gate was seized against the store's refusal, or not seized at all")
		}
	})
}

// TestRetry: work runs again if its own transaction was undone, and only then. An error that the work returned may wrap
// the same of a transaction inside of it, or say that the outcome of that one is unknown.
func TestRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		undone := &sqltx.UndoneError{}
		_, inner := sqltx.Retry(t.Context(), false, func(context.Context) error { return undone })
		for name, c := range map[string]struct {
			err    error
			runs   int
			gaveUp bool
		}{
			"undone":                 {undone, sqltx.MaxTries, true},
			"undone early":           {&sqltx.UndoneError{Early: true}, sqltx.MaxUndone, true},
			"undone with an error":   {&sqltx.UndoneError{Cause: inner}, sqltx.MaxTries, true},
			"undone inside":          {inner, 1, false},
			"unknown":                {errors.Join(store.ErrOutcomeUnknown, inner), 1, false},
			"undone, unknown inside": {&sqltx.UndoneError{Cause: errors.Join(store.ErrOutcomeUnknown, inner)}, 1, false},
			"none":                   {nil, 1, false},
		} {
			runs := 0
			gaveUp, err := sqltx.Retry(t.Context(), false, func(context.Context) error { runs++; return c.err })
			if runs != c.runs || gaveUp != c.gaveUp || (err == nil) != (c.err == nil) {
				t.Errorf("I1: %s: %d runs, gave up %t, %v; want %d runs", name, runs, gaveUp, err, c.runs)
			}
		}
		ctx, leave := context.WithCancel(t.Context())
		leave()
		for _, startOnly := range []bool{false, true} {
			runs := 0
			try := func(context.Context) error { runs++; return undone }
			if gaveUp, _ := sqltx.Retry(ctx, startOnly, try); !gaveUp || runs != 1 {
				t.Errorf("a caller that has left: %d runs", runs)
			}
		}
	})
}

// TestRetryAfterTheDeadline: a deadline that bounds the start of the work alone is that of each wait until the work
// starts. A try that did not come to its work leaves the time that is left.
func TestRetryAfterTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			startOnly, early bool
			runs             int
		}{
			"the start": {true, false, sqltx.MaxTries}, "the start, not reached": {true, true, 2}, "the whole": {false, false, 2},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			runs := 0
			gaveUp, err := sqltx.Retry(ctx, c.startOnly, func(ctx context.Context) error {
				runs++
				if until, ok := ctx.Deadline(); !ok || time.Until(until) > 5*time.Second {
					t.Errorf("%s: run %d has until %s", name, runs, until)
				}
				time.Sleep(3 * time.Second)
				return &sqltx.UndoneError{Cause: errors.New("1213"), Early: c.early}
			})
			if !gaveUp || runs != c.runs || !strings.Contains(err.Error(), "1213") {
				t.Errorf("a deadline for %s: %d runs, gave up %t, %v; want %d runs", name, runs, gaveUp, err, c.runs)
			}
			cancel()
		}
	})
}

// TestRetryNamesTheConflict: where the store cannot be reached for another try, the error also names why the first one was
// undone.
func TestRetryNamesTheConflict(t *testing.T) {
	t.Parallel()
	runs := 0
	_, err := sqltx.Retry(t.Context(), true, func(context.Context) error {
		if runs++; runs == 1 {
			return &sqltx.UndoneError{Cause: errors.New("1213")}
		}
		return fmt.Errorf("%w: no connection", store.ErrUnavailable)
	})
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "no connection") ||
		!strings.Contains(err.Error(), "1213") {
		t.Errorf("%v, want both reasons", err)
	}
}
