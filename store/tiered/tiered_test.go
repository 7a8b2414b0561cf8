package tiered_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/tiered"
)

// TestReplay: the durable store answers the first retry, the front the later ones, with the same answer.
func TestReplay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{})
		w.execute(request(key), "done")
		first := w.replay("done", false)
		second := w.replay("done", true)
		same := bytes.Equal(first.Record.AppendBinary(nil), second.Record.AppendBinary(nil)) && first.Record.ID == second.Record.ID
		if !same || !first.Now.Equal(second.Now) || second.Origin != 0 {
			t.Errorf("the front answered with %+v, the durable store with %+v", second, first)
		}
		time.Sleep(time.Second)
		if third := w.replay("done", true); third.Now.Sub(first.Now) != time.Second {
			t.Errorf("a second later the verdict's clock went from %s to %s", first.Now, third.Now)
		}
	})
}

// TestNothingElse: whatever is not a replay to the same request is the durable store's to decide.
func TestNothingElse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{})
		w.execute(request(key), "done")
		w.replay("done", false)

		other := request(key)
		other.Fingerprints[0].Sum = sha256.Sum256([]byte("another request"))
		w.reserve(other, store.DecisionMismatch)
		rotated := request(key)
		rotated.Fingerprints[0].Secret = 8
		if _, err := w.store.Reserve(t.Context(), rotated); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("a request whose fingerprint cannot be compared got %v, want ErrUnreadable", err)
		}
		invalid := request(key)
		invalid.Nonce = store.Nonce{}
		if _, err := w.store.Reserve(t.Context(), invalid); !errors.Is(err, store.ErrInvalidEvent) {
			t.Errorf("a reservation without a nonce got %v, want ErrInvalidEvent", err)
		}
		for _, change := range []func(r *store.Reservation){
			func(r *store.Reservation) { r.NoCreate = true }, func(r *store.Reservation) { r.ResumeOnly = true },
		} {
			hits, r := w.hits.Load(), request(key)
			change(r)
			if w.reserve(r, store.DecisionReplay); w.hits.Load() != hits+1 {
				t.Error("a replay to a request that must not create was not answered by the front")
			}
		}

		w.reserve(request(store.ID{Scope: "acme", Key: "running"}), store.DecisionExecute)
		for range 2 {
			w.reserve(request(store.ID{Scope: "acme", Key: "running"}), store.DecisionInProgress)
		}
		if adds := w.front.adds.Load(); adds != 1 {
			t.Errorf("the front was filled %d times, want once, with what was completed", adds)
		}
	})
}

// TestAge: an answer of the front ends when it is MaxAge old, and with its record.
func TestAge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{MaxAge: 10 * time.Second})
		w.execute(request(key), "done")
		w.replay("done", false)
		time.Sleep(10*time.Second - 1)
		w.replay("done", true)
		time.Sleep(time.Nanosecond)
		w.replay("done", false)
		w.replay("done", true)
	})
}

// TestExpiry: the front does not answer when the record has expired, to the microsecond.
func TestExpiry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{})
		short := request(key)
		short.Retention = 2 * time.Second
		w.execute(short, "done")
		w.replay("done", false)
		time.Sleep(2*time.Second - time.Microsecond)
		w.replay("done", true)
		time.Sleep(time.Microsecond)
		if value, err := w.front.Get(t.Context(), key); len(value) > 0 || err != nil {
			t.Errorf("the front still holds (%q, %v)", value, err)
		}
		w.reserve(request(key), store.DecisionExecute)
	})
}

// TestLateFill: a record read before a bust, and filled after it, is not seen.
func TestLateFill(t *testing.T) {
	for _, delay := range []time.Duration{0, 10*time.Second - 1, 10 * time.Second, time.Hour} {
		t.Run(delay.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, tiered.Config{MaxAge: 10 * time.Second})
				w.execute(request(key), "old")
				w.front.set(func(f *faultyFront) { f.holds = true })
				w.replay("old", false) // its fill is on the way
				if err := w.store.Bust(t.Context(), key, false); err != nil {
					t.Fatal(err)
				}
				time.Sleep(delay)
				w.front.release()
				w.execute(request(key), "new")
				w.front.release()
				w.replay("new", false)
			})
		})
	}
}

// TestLateFillBesideNew: an old answer does not take the place of the new one either, nor follow it.
func TestLateFillBesideNew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{MaxAge: 10 * time.Second})
		w.execute(request(key), "old")
		w.front.set(func(f *faultyFront) { f.holds = true })
		w.replay("old", false)
		time.Sleep(time.Second)
		if err := w.store.Bust(t.Context(), key, false); err != nil {
			t.Fatal(err)
		}
		w.front.set(func(f *faultyFront) { f.holds = false })
		short := request(key)
		short.Retention = time.Hour + 5*time.Second
		w.execute(short, "new")
		w.replay("new", false) // its fill meets the tombstone
		w.replay("new", false)
		time.Sleep(time.Hour)
		w.replay("new", false)
		w.replay("new", true)
		w.front.release()
		w.replay("new", true)
		time.Sleep(5 * time.Second)
		w.front.release()
		w.reserve(request(key), store.DecisionExecute)
	})
}

// TestMaxAgeIsRaised: while nodes with a longer MaxAge are started, a bust by one with a shorter one keeps their late
// fills out as well.
func TestMaxAgeIsRaised(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{MaxAge: 10 * time.Second})
		raised, err := tiered.New(w.durable, w.front, tiered.Config{MaxAge: time.Hour, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = raised.Close() }()
		w.execute(request(key), "old")
		w.front.set(func(f *faultyFront) { f.holds = true })
		if v, err := raised.Reserve(t.Context(), request(key)); err != nil || v.Decision != store.DecisionReplay {
			t.Fatal(v.Decision, err)
		}
		synctest.Wait() // its fill is on the way
		if err := w.store.Bust(t.Context(), key, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.front.release()
		if v, err := raised.Reserve(t.Context(), request(key)); err != nil || v.Decision != store.DecisionExecute {
			t.Errorf("what was busted a minute ago got (%v, %v)", v.Decision, err)
		}
	})
}

// TestLargeRecords: what is larger than MaxBytes is not put into the front.
func TestLargeRecords(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{MaxBytes: 1000})
		large := strings.Repeat("x", 1000)
		w.execute(request(key), large)
		w.replay(large, false)
		w.replay(large, false)
	})
}

// TestFillsAreBounded: fills do not queue up for a front that accepts none, and no request waits for one.
func TestFillsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{})
		w.front.set(func(f *faultyFront) { f.slowAdds = true })
		start := time.Now()
		for i := range 200 {
			id := store.ID{Scope: "acme", Key: fmt.Sprint(i)}
			w.execute(request(id), "done")
			w.reserve(request(id), store.DecisionReplay)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("retries waited %s for their fills", took)
		}
		if adds := w.front.adds.Load(); adds != 64 {
			t.Errorf("%d fills are under way, want 64", adds)
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	front := tiered.NewMemory(tiered.MemoryConfig{})
	for _, wrong := range []tiered.Config{
		{MaxAge: time.Second - 1}, {MaxAge: time.Hour + 1}, {MaxAge: -1}, {FrontTimeout: -1}, {MaxBytes: -1},
	} {
		if _, err := tiered.New(memory.New(), front, wrong); err == nil {
			t.Errorf("%+v was accepted", wrong)
		}
	}
	if _, err := tiered.New(nil, front, tiered.Config{}); err == nil {
		t.Error("no durable store was accepted")
	}
	if _, err := tiered.New(memory.New(), nil, tiered.Config{}); err == nil {
		t.Error("no front was accepted")
	}
	once, err := tiered.New(memory.New(), front, tiered.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = once.Close() }()
	if _, err := tiered.New(once, front, tiered.Config{}); err == nil {
		t.Error("a front before a front was accepted: its answers would be twice as old")
	}
}

// TestClosed: a closed store starts nothing in the background.
func TestClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, tiered.Config{})
		w.execute(request(key), "done")
		w.front.set(func(f *faultyFront) { f.down = true })
		w.replay("done", false)
		if err := w.store.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.replay("done", false)
	})
}
