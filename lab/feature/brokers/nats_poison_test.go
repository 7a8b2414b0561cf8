package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward/broker/nats"
	"github.com/onceward/onceward/store"
)

// failingMessages is a handler that writes a message down, and then fails until the test lets it succeed.
type failingMessages struct {
	mu    sync.Mutex
	calls map[string]int
	fail  func(event string, call int) error
}

func (f *failingMessages) handle(ctx context.Context, m jetstream.Msg) error {
	if err := applyNATS(ctx, m); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = make(map[string]int)
	}
	event := string(m.Data())
	f.calls[event]++
	return f.fail(event, f.calls[event])
}

// A message that fails comes again, and its failures leave no trace.
func TestFailedMessagesComeAgain(t *testing.T) {
	t.Parallel()
	b := newNATSBench(t)
	b.publish(t, idsNATS(0, 3)...)
	c := b.config(t)
	c.Handle = (&failingMessages{fail: func(event string, call int) error {
		if event == "e-1" && call < 5 {
			return errBroken
		}
		return nil
	}}).handle
	run := startNATS(t, c)
	b.awaitSettled(t, c)
	run.stop(t)
	b.expect(t, "e-0", "e-2", "e-1")
}

// With one message under way at a time, those behind one that fails wait for it.
func TestOrder(t *testing.T) {
	t.Parallel()
	b := newNATSBench(t)
	b.publish(t, idsNATS(0, 5)...)
	source, err := b.stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "ordered", MaxAckPending: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := b.config(t)
	c.Source = source
	c.Handle = (&failingMessages{fail: func(_ string, call int) error {
		if call < 3 {
			return errBroken
		}
		return nil
	}}).handle
	run := startNATS(t, c)
	b.awaitSettled(t, c)
	run.stop(t)
	b.expect(t, idsNATS(0, 5)...)
}

// Without an OnPoison the consumer stops at a message that cannot be applied, and the message stays with the server.
func TestNATSStopsAtPoison(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		poison string
		fail   func(event string, call int) error
		calls  int
	}{
		"no ID":       {poison: ""},
		"long ID":     {poison: strings.Repeat("x", 256)},
		"deliveries":  {"bad", func(string, int) error { return errBroken }, 3},
		"panic":       {"bad", func(string, int) error { panic("oh") }, 3},
		"the handler": {"bad", func(string, int) error { return fmt.Errorf("%w: no JSON", nats.ErrPoison) }, 1},
		"unavailable": {"bad", func(_ string, call int) error {
			if call <= 6 {
				return store.ErrUnavailable
			}
			return errBroken
		}, 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newNATSBench(t)
			b.publish(t, "e-0", test.poison)
			f := &failingMessages{fail: func(event string, call int) error {
				if event == test.poison {
					return test.fail(event, call)
				}
				return nil
			}}
			c := b.config(t)
			c.Handle, c.MaxAttempts = f.handle, 3
			err := startNATS(t, c).wait(t)
			if !errors.Is(err, nats.ErrPoison) || !strings.Contains(fmt.Sprint(err), "subject charges, sequence 2") {
				t.Errorf("Run ended with %v", err)
			}
			b.expect(t, "e-0")
			if f.calls[test.poison] != test.calls {
				t.Errorf("%d calls, want %d", f.calls[test.poison], test.calls)
			}
			c.Handle = applyNATS
			c.EventID = func(jetstream.Msg) (string, error) { return "repaired", nil }
			run := startNATS(t, c)
			b.awaitSettled(t, c)
			run.stop(t)
			b.expect(t, "e-0", test.poison)
		})
	}
}

// OnPoison puts messages aside, and they do not come again; an OnPoison that fails is asked again.
func TestNATSOnPoisonDecides(t *testing.T) {
	t.Parallel()
	b := newNATSBench(t)
	b.publish(t, "e-0", "bad", "e-1")
	c := b.config(t)
	c.MaxAttempts = 2
	c.Handle = (&failingMessages{fail: func(event string, _ int) error {
		if event == "bad" {
			return errBroken
		}
		return nil
	}}).handle
	asked := 0
	c.OnPoison = func(_ context.Context, m jetstream.Msg, cause error) error {
		if string(m.Data()) != "bad" || !errors.Is(cause, errBroken) {
			t.Errorf("asked about %s: %v", m.Data(), cause)
		}
		if asked++; asked < 3 {
			return errors.New("the dead letters' table is locked")
		}
		return nil
	}
	run := startNATS(t, c)
	b.awaitSettled(t, c)
	run.stop(t)
	if asked != 3 {
		t.Errorf("asked %d times", asked)
	}
	b.expect(t, "e-0", "e-1")
}
