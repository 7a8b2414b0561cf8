package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

// pauses runs a worker each time the message is due, and returns the pauses that it planned until it gave up.
func (b *bench) pauses(w *outbox.Worker, id string) (pauses []time.Duration) {
	b.Helper()
	for {
		_, err := w.RunOnce(b.Context())
		b.must(err)
		e := b.entry(id)
		if e.State != outbox.StateReady {
			return pauses
		}
		pauses = append(pauses, time.Until(e.Due))
		if _, err := w.RunOnce(b.Context()); err != nil || b.entry(id).Attempts != e.Attempts {
			b.Fatalf("the message was delivered before it was due (%v)", err)
		}
		time.Sleep(time.Until(e.Due))
	}
}

// TestGrowingPauses: each pause is between half of what it may be and that, which doubles up to the longest.
func TestGrowingPauses(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := &clerk{does: fails(errDown, "m")}
		id := b.add(about("", "m"))[0]
		w := b.worker(b.store,
			outbox.Route{Handler: mail.deliver, MaxAttempts: 7, MinBackoff: time.Second, MaxBackoff: 5 * time.Second})
		longest := []time.Duration{1, 2, 4, 5, 5, 5}
		got := b.pauses(w, id)
		if len(got) != len(longest) {
			b.Fatalf("the pauses were %v, want %d of them", got, len(longest))
		}
		for i, pause := range got {
			if most := longest[i] * time.Second; pause < most/2-time.Microsecond || pause > most {
				b.Errorf("pause %d was %s, want it between %s and %s", i+1, pause, most/2, most)
			}
		}
		e := b.entry(id)
		if e.State != outbox.StateDead || e.Attempts != 7 || e.LastError != errDown.Error() {
			b.Errorf("in the end it is %s after %d tries: %q", e.State, e.Attempts, e.LastError)
		}
	})
}

// TestPausesDiffer: messages that failed together do not come back together.
func TestPausesDiffer(t *testing.T) {
	inTime(t, func(b *bench) {
		var messages []outbox.Message
		for range 50 {
			messages = append(messages, about("", "m"))
		}
		ids := b.add(messages...)
		w := b.worker(b.store, outbox.Route{Handler: fails(errDown, "m"), MinBackoff: 10 * time.Second})
		b.run(w, outbox.Report{Retried: len(ids)})
		halves := make(map[bool]int)
		for _, id := range ids {
			halves[time.Until(b.entry(id).Due) > 7500*time.Millisecond]++
		}
		if halves[true] < 5 || halves[false] < 5 {
			b.Errorf("the pauses are not spread: %v", halves)
		}
	})
}

// TestPanicIsAFailure of that message alone.
func TestPanicIsAFailure(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := &clerk{does: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.Type == "bad" {
				panic("a nil map")
			}
			return outbox.Result{}, nil
		}}
		ids := b.add(about("a", "bad"), about("b", "good"), about("", "good"))
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}), outbox.Report{Delivered: 2, Retried: 1})
		b.wantStates("one message", ids, outbox.StateReady, outbox.StateDone, outbox.StateDone)
		if e := b.entry(ids[0]); !strings.Contains(e.LastError, "panicked: a nil map") {
			b.Errorf("the reason is %q", e.LastError)
		}
	})
}

// TestTimeout: a delivery ends with its route's time, and is tried again.
func TestTimeout(t *testing.T) {
	inTime(t, func(b *bench) {
		id := b.add(about("", "m"))[0]
		began := time.Now()
		w := b.worker(b.store, outbox.Route{Timeout: 3 * time.Second, Handler: func(ctx context.Context, _ *outbox.Delivery) (outbox.Result, error) {
			<-ctx.Done()
			return outbox.Result{}, context.Cause(ctx)
		}})
		b.run(w, outbox.Report{Retried: 1})
		if e := b.entry(id); time.Since(began) != 3*time.Second || e.LastError != context.DeadlineExceeded.Error() {
			b.Errorf("it ended after %s: %q", time.Since(began), e.LastError)
		}
	})
}

func TestPermanent(t *testing.T) {
	inTime(t, func(b *bench) {
		reason := errors.New("there is no such account")
		id := b.add(about("", "m"))[0]
		b.run(b.worker(b.store, outbox.Route{Handler: fails(outbox.Permanent(reason), "m")}), outbox.Report{DeadLetters: 1})
		if e := b.entry(id); e.State != outbox.StateDead || e.Attempts != 1 ||
			!strings.Contains(e.LastError, reason.Error()) {
			b.Errorf("it is %s after %d tries: %q", e.State, e.Attempts, e.LastError)
		}
		if err := outbox.Permanent(reason); !errors.Is(err, reason) || !errors.Is(err, outbox.ErrPermanent) {
			b.Errorf("%v wraps not both", err)
		}
		if outbox.Permanent(nil) != nil || outbox.RetryAfter(nil, time.Second) != nil {
			b.Error("no error became one")
		}
	})
}

// TestRetryAfter: the receiver's wish counts, but never for a shorter pause than the route's own.
func TestRetryAfter(t *testing.T) {
	inTime(t, func(b *bench) {
		long := fmt.Errorf("429: %w", outbox.RetryAfter(errDown, time.Hour))
		if !errors.Is(long, errDown) {
			b.Errorf("%v does not wrap its reason", long)
		}
		mail := &clerk{does: func(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.Type == "long" {
				return outbox.Result{}, long
			}
			return outbox.Result{}, outbox.RetryAfter(errDown, time.Millisecond)
		}}
		ids := b.add(about("", "long"), about("", "short"))
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver, MinBackoff: time.Minute}), outbox.Report{Retried: 2})
		if wait := time.Until(b.entry(ids[0]).Due); wait != time.Hour {
			b.Errorf("the receiver asked for an hour, and gets %s", wait)
		}
		if wait := time.Until(b.entry(ids[1]).Due); wait < 30*time.Second-time.Microsecond || wait > time.Minute {
			b.Errorf("the route's pause was to count, but it is %s", wait)
		}
	})
}

// TestLongErrors: of an error is kept what any database takes.
func TestLongErrors(t *testing.T) {
	inTime(t, func(b *bench) {
		id := b.add(about("", "m"))[0]
		b.run(b.worker(b.store, outbox.Route{Handler: fails(errors.New("\x00"+strings.Repeat("ä", 5000)), "m")}),
			outbox.Report{Retried: 1})
		if got := b.entry(id).LastError; got != " "+strings.Repeat("ä", 999) {
			b.Errorf("of the error are kept %d bytes: %.20q…", len(got), got)
		}
	})
}
