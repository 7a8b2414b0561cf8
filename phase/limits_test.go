package phase_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// definition is one of orders with its own limits.
func definition(steps ...phase.Step[order]) phase.Definition[order] {
	return phase.Definition[order]{
		Name: "POST /orders", Steps: steps,
		Answer: func(o *order) phase.Answer { return phase.JSON(http.StatusCreated, o) },
	}
}

// priced writes more than it reads.
type priced struct {
	Price int64 `json:"price"`
}

func (p priced) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"price":%d,"total":%d}`, p.Price, 2*p.Price), nil
}

// TestDataThatItsTypeCannotRead: no attempt could continue an operation that carries it, so nothing of it is begun.
func TestDataThatItsTypeCannotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, lenient := range []bool{false, true} {
			b := newBench(t, memory.New())
			charged := false
			o := phase.Must(phase.New(phase.Definition[priced]{
				Name: "POST /orders", LenientData: lenient,
				Steps: []phase.Step[priced]{phase.External("charge", func(context.Context, string, *priced) error {
					charged = true
					return nil
				})},
				Answer: func(p *priced) phase.Answer { return phase.JSON(http.StatusCreated, p) },
			}))
			b.send(o.Handler(b.guard, func(*http.Request) (*priced, error) { return &priced{Price: 5}, nil }), "k")
			rec := b.record("k")
			told := rec.State == store.StateRetryable && strings.Contains(rec.LastError, `"total"`)
			if charged != lenient || !lenient && !told {
				t.Errorf("lenient %t: charged %t, and the record is %s: %s", lenient, charged, rec.State, rec.LastError)
			}
		}
	})
}

// TestAttempts counts by step, and waits twice as long before each attempt, up to a minute.
func TestAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		failures := map[string]int{"seat": 9, "confirm": 9}
		failing := func(name string) phase.Step[order] {
			return b.local(name, func(context.Context, *order) error {
				if failures[name]--; failures[name] >= 0 {
					return errDown
				}
				return nil
			})
		}
		o := phase.Must(phase.New(definition(failing("seat"), failing("confirm"))))
		var pauses []time.Duration
		for w := b.post(o, "k"); w.Code != http.StatusCreated; w = b.post(o, "k") {
			b.want(w, http.StatusConflict, "in-progress")
			pause := time.Until(b.record("k").LeaseUntil)
			pauses = append(pauses, pause)
			time.Sleep(pause)
		}
		const s, m = time.Second, time.Minute
		want := []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, m, m, m}
		for i, pause := range append(want, want...) { // the second step counts from the beginning
			if len(pauses) != 2*len(want) || pauses[i] != pause {
				t.Fatalf("the pauses are %s", pauses)
			}
		}
	})
}

// TestTheLastAttempt: the tenth is the last by default, or the one set by a definition.
func TestTheLastAttempt(t *testing.T) {
	t.Parallel()
	for attempts, want := range map[int]int{0: 10, 1: 1, 3: 3} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, memory.New())
			d := definition(b.call("charge", func(context.Context, string, *order) error { return errDown }).Repeat())
			d.MaxAttempts = attempts
			o := phase.Must(phase.New(d))
			for range 20 {
				b.post(o, "k")
				time.Sleep(2 * time.Minute)
			}
			rec := b.record("k")
			if rec.State != store.StateUnknown || !strings.Contains(rec.LastError, errDown.Error()) {
				t.Errorf("the record is %s: %s", rec.State, rec.LastError)
			}
			b.wantTrace(strings.TrimSpace(strings.Repeat("charge ", want)))
		})
	}
}

// TestAStoreThatIsDownIsNoAttempt: the step is not to blame.
func TestAStoreThatIsDownIsNoAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, down := &downStore{Store: memory.New()}, true
		b := newBench(t, store)
		d := definition(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *order) error {
			if down {
				store.until = time.Now().Add(20 * time.Second) // longer than a checkpoint is tried
			}
			return nil
		}), b.local("mail", confirm))
		d.MaxAttempts = 2
		o := phase.Must(phase.New(d))
		for range 3 {
			b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
			time.Sleep(time.Minute)
		}
		down = false
		b.want(b.post(o, "k"), http.StatusCreated, "12A")
		b.wantTrace("seat confirm confirm confirm confirm mail")
	})
}

// downStore refuses checkpoints for a time.
type downStore struct {
	*memory.Store
	until time.Time
}

// Checkpoint implements [store.Store].
func (s *downStore) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	if time.Now().Before(s.until) {
		return store.ErrUnavailable
	}
	return s.Store.Checkpoint(ctx, c, p)
}

// TestMaxData is what the data may take, to the byte, whatever the names of the steps take.
func TestMaxData(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const empty = len(`{"Item":"","Seat":"","Charge":""}`)
		for size, fits := range map[int]bool{100: true, 101: false} {
			b := newBench(t, memory.New())
			d := definition(b.local("start", confirm), b.local(strings.Repeat("fill", 50),
				func(_ context.Context, o *order) error {
					o.Item = strings.Repeat("x", size-empty)
					return nil
				}))
			d.MaxData, d.MaxAttempts = 100, 1
			o := phase.Must(phase.New(d))
			result, err := o.Do(t.Context(), b.guard, onceward.Call{Scope: "shop", Key: "k"}, order{})
			if fits && (err != nil || len(result.Value) != size) {
				t.Errorf("%d bytes: %s, %v", size, result.Value, err)
			}
			if !fits && (!errors.Is(err, store.ErrOutcomeUnknown) || !strings.Contains(b.record("k").LastError,
				"takes 101 bytes; the limit is 100")) {
				t.Errorf("%d bytes: %v, %s", size, err, b.record("k").LastError)
			}
		}
	})
}

func TestDefinitions(t *testing.T) {
	t.Parallel()
	answer := func(*order) phase.Answer { return phase.Answer{} }
	seat := phase.Local("seat", takeSeat)
	for name, d := range map[string]phase.Definition[order]{
		"no name":           {Steps: []phase.Step[order]{seat}, Answer: answer},
		"no steps":          {Name: "n", Answer: answer},
		"no answer":         {Name: "n", Steps: []phase.Step[order]{seat}},
		"two of one name":   {Name: "n", Steps: []phase.Step[order]{seat, seat}, Answer: answer},
		"a nameless step":   {Name: "n", Steps: []phase.Step[order]{phase.Local("", takeSeat)}, Answer: answer},
		"an empty step":     {Name: "n", Steps: []phase.Step[order]{{}}, Answer: answer},
		"no function":       {Name: "n", Steps: []phase.Step[order]{phase.Local[order]("seat", nil)}, Answer: answer},
		"a repeated local":  {Name: "n", Steps: []phase.Step[order]{seat.Repeat()}, Answer: answer},
		"a pause of years":  {Name: "n", Steps: []phase.Step[order]{seat}, Answer: answer, MinBackoff: math.MaxInt64},
		"a negative number": {Name: "n", Steps: []phase.Step[order]{seat}, Answer: answer, MaxAttempts: -1},
	} {
		if _, err := phase.New(d); err == nil {
			t.Errorf("%s: the definition was accepted", name)
		}
	}
}

// TestProgressOfOthers: what this package has not written it does not read.
func TestProgressOfOthers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rec       store.Record
		notPhased bool
	}{
		"no recovery point": {store.Record{OnLost: store.LostResume}, true},
		"not resumed":       {store.Record{Point: "calling"}, true},
		"another's data":    {store.Record{OnLost: store.LostResume, Point: "page 7", Data: []byte(`{"page":7}`)}, true},
		"no data":           {store.Record{OnLost: store.LostResume, Point: "page 7"}, true},
		"a later encoding":  {store.Record{OnLost: store.LostResume, Point: "s", Data: []byte(`{"v":99,"via":"do"}`)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := phase.Inspect(&c.rec); err == nil || errors.Is(err, phase.ErrNotPhased) != c.notPhased {
				t.Errorf("got %v", err)
			}
		})
	}
}
