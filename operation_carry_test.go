package onceward_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// transfer is what the handlers of these tests carry.
type transfer struct {
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
	Note    string `json:"note,omitempty"`
}

var rent = transfer{Account: "DE02", Cents: 90_000}

// carrying runs a handler that does something with its operation and ends as unknown, and returns its record.
func carrying(
	t *testing.T, s store.Store, do func(ctx context.Context, op *onceward.Operation) error, options ...onceward.Option,
) (*store.Record, error) {
	t.Helper()
	var err error
	h := newGuard(t, s).HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		op := onceward.FromContext(r.Context())
		err = do(r.Context(), op)
		op.Unknown()
	}, append([]onceward.Option{reserved}, options...)...)
	post(h, "k", `{}`)
	rec, getErr := s.Get(t.Context(), aliceID("k"))
	if getErr != nil && !errors.Is(getErr, store.ErrNotFound) {
		t.Fatal(getErr)
	}
	return &rec, err
}

func TestCarry(t *testing.T) {
	t.Parallel()
	rec, err := carrying(t, memory.New(), func(ctx context.Context, op *onceward.Operation) error {
		return errors.Join(op.Carry(ctx, "replaced"), op.Carry(ctx, &rent))
	})
	got, readErr := onceward.Carried[transfer](rec)
	if err != nil || readErr != nil || got != rent {
		t.Errorf("B3: carried %+v, errors %v, %v", got, err, readErr)
	}
	if rec.Point != "" {
		t.Errorf("B3: the record is at %q: a carried value is no recovery point", rec.Point)
	}
	if _, err := onceward.Carried[struct {
		Account string `json:"account"`
	}](rec); err == nil || !strings.Contains(err.Error(), "cents") {
		t.Errorf("B5: a field that the type does not have got %v", err)
	}
	if _, err := onceward.Carried[struct {
		transfer
		Fee int64 `json:"fee"`
	}](rec); err == nil || !strings.Contains(err.Error(), "fee") {
		t.Errorf("B5: a field that the value does not have got %v", err)
	}
}

// TestCarryIsDurableBeforeItReturns: what the store did not take is an error, and so is an attempt that was overtaken.
func TestCarryIsDurableBeforeItReturns(t *testing.T) {
	t.Parallel()
	s := newFaultyStore()
	_, err := carrying(t, s, func(ctx context.Context, op *onceward.Operation) error {
		if err := s.Bust(ctx, aliceID("k"), true); err != nil {
			return err
		}
		return op.Carry(ctx, rent)
	})
	if !errors.Is(err, store.ErrFenced) {
		t.Errorf("S6: Carry of a fenced attempt got %v", err)
	}
	_, err = carrying(t, memory.New(), func(ctx context.Context, op *onceward.Operation) error {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return op.Carry(ctx, rent)
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("B3: Carry in a context that has ended got %v", err)
	}
}

func TestWhatCannotBeCarried(t *testing.T) {
	t.Parallel()
	var none *onceward.Operation
	if err := none.Carry(t.Context(), rent); err != nil {
		t.Errorf("B3: without protection Carry got %v", err)
	}
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"nil":                 {nil, "needs a value"},
		"a channel":           {make(chan int), "cannot be carried"},
		"an interface":        {struct{ Err any }{struct{ A int }{1}}, ""},
		"a field of an error": {struct{ Err error }{errCard}, "cannot be carried"},
		"unexported fields":   {&struct{ id string }{"x"}, "cannot be carried"},
		"an empty field": {struct {
			ID string `json:"id,omitempty"`
		}{}, ""},
		"too much": {strings.Repeat("x", 64<<10), "the limit is 65536"},
	} {
		rec, err := carrying(t, memory.New(), func(ctx context.Context, op *onceward.Operation) error {
			return op.Carry(ctx, test.value)
		})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("B3: to carry %s got %v, want %q", name, err, test.want)
		}
		if test.want != "" && len(rec.Data) != 0 {
			t.Errorf("B3: %s is stored: %q", name, rec.Data)
		}
	}
	rec, err := carrying(t, &undoingTransactor{memory.New()}, func(ctx context.Context, op *onceward.Operation) error {
		return op.Carry(ctx, rent)
	}, onceward.Transactional())
	if err == nil || !strings.Contains(err.Error(), "transactional") || rec.State != store.StateNone {
		t.Errorf("B3: in a transaction Carry got %v", err)
	}
}

// TestCarriedBelongsToTheAttempt: what was carried by an attempt that was released is not read as the next one's.
func TestCarriedBelongsToTheAttempt(t *testing.T) {
	t.Parallel()
	s := memory.New()
	first := newGuard(t, s).HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		op := onceward.FromContext(r.Context())
		if err := op.Carry(r.Context(), rent); err != nil {
			t.Error(err)
		}
		op.NotExecuted()
	}, reserved)
	post(first, "k", `{}`)
	rec, err := carrying(t, s, func(context.Context, *onceward.Operation) error { return nil })
	if err != nil || rec.State != store.StateUnknown {
		t.Fatalf("B3: the record is %s, error %v", rec.State, err)
	}
	if got, err := onceward.Carried[transfer](rec); !errors.Is(err, onceward.ErrNothingCarried) {
		t.Errorf("B3: the second attempt carried nothing, and %+v is read, error %v", got, err)
	}
}

// TestCarriedOutlivesAResumedAttempt: a resumed attempt that carries nothing leaves the value of the lost one, even if
// it reports that nothing was ever executed: the call of the lost one may have been sent.
func TestCarriedOutlivesAResumedAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFaultyStore(), 0
		h := newGuard(t, s).HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if runs++; runs == 1 {
				if err := op.Carry(r.Context(), rent); err != nil {
					t.Error(err)
				}
				op.Suspend(time.Second)
				return
			}
			if err := op.KeepData(); err == nil {
				t.Error("E3: KeepData beside a carried value got no error")
			}
			op.NeverExecuted()
			op.Reject()
		}, reserved, onceward.OnLost(store.LostResume))
		post(h, "k", `{}`)
		time.Sleep(2 * time.Second)
		post(h, "k", `{}`)
		rec, err := s.Get(t.Context(), aliceID("k"))
		if err != nil || rec.State != store.StateUnknown || runs != 2 {
			t.Fatalf("E3: the record is %s after %d runs, error %v", rec.State, runs, err)
		}
		if got, err := onceward.Carried[transfer](&rec); err != nil || got != rent {
			t.Errorf("B3: %+v is read, error %v", got, err)
		}
	})
}

// TestCarryBesideRecoveryPoints: the data of a record holds one thing.
func TestCarryBesideRecoveryPoints(t *testing.T) {
	t.Parallel()
	point := store.Checkpoint{Point: "charged", Data: []byte(`{"v":2,"via":"http","data":{}}`)}
	rec, err := carrying(t, memory.New(), func(ctx context.Context, op *onceward.Operation) error {
		if err := op.Checkpoint(point); err != nil {
			return err
		}
		return op.Carry(ctx, rent)
	}, onceward.OnLost(store.LostResume))
	if err == nil || !strings.Contains(err.Error(), "phase") || string(rec.Data) != string(point.Data) {
		t.Errorf("E3: Carry beside the data of a recovery point got %v, and the record has %q", err, rec.Data)
	}
	if _, err := onceward.Carried[transfer](rec); !errors.Is(err, onceward.ErrNothingCarried) {
		t.Errorf("E3: Carried of a recovery point got %v", err)
	}
	rec, err = carrying(t, memory.New(), func(ctx context.Context, op *onceward.Operation) error {
		if err := errors.Join(op.Carry(ctx, rent), op.Checkpoint(store.Checkpoint{Point: "charged"})); err != nil {
			return err
		}
		return op.Checkpoint(point)
	}, onceward.OnLost(store.LostResume))
	if got, readErr := onceward.Carried[transfer](rec); err == nil || readErr != nil || got != rent ||
		rec.Point != "charged" {
		t.Errorf("E3: a recovery point beside a carried value got %v; carried %+v, %v, at %q", err, got, readErr, rec.Point)
	}
	for _, data := range []string{
		`{"onceward-carry":2,"value":{}}`, `{"onceward-carry":1,"value":`, `{"onceward-carry":1}`,
	} {
		if _, err := onceward.Carried[transfer](&store.Record{Data: []byte(data)}); err == nil ||
			errors.Is(err, onceward.ErrNothingCarried) {
			t.Errorf("S8: Carried of %s got %v", data, err)
		}
	}
}
