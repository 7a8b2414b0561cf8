package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/broker/kafka"
	"github.com/onceward/onceward/store"
)

// failingRecords is a handler that writes a record down, and then fails until the test lets it succeed.
type failingRecords struct {
	mu    sync.Mutex
	calls map[string]int
	fail  func(event string, call int) error
}

func (f *failingRecords) handle(ctx context.Context, r *kgo.Record) error {
	if err := applyKafka(ctx, r); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = make(map[string]int)
	}
	f.calls[string(r.Value)]++
	return f.fail(string(r.Value), f.calls[string(r.Value)])
}

func (f *failingRecords) count(event string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[event]
}

// A record that fails is tried again before those behind it, while other partitions go on, and its failures leave no
// trace.
func TestFailedRecordsAreTriedAgain(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	for p := range partitions {
		b.produce(t, int32(p), idsKafka(p, 0, 5)...)
	}
	others := make(chan struct{})
	f := &failingRecords{fail: func(event string, call int) error {
		select {
		case <-others:
			return nil
		default:
		}
		if event == "2-2" {
			return errBroken
		}
		return nil
	}}
	c := b.config(t)
	c.Handle, c.MaxAttempts = f.handle, 1<<30
	run := startKafka(t, c)
	b.awaitCommitted(t, 5, 5, 2, 5)
	close(others)
	b.awaitCommitted(t)
	run.stop(t)
	b.expectOnce(t, 5)
}

// Without an OnPoison the consumer stops at a record that cannot be applied, and what is before it stays applied.
func TestKafkaStopsAtPoison(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		poison string
		fail   func(event string, call int) error
		calls  int
	}{
		"no ID":       {poison: ""},
		"long ID":     {poison: strings.Repeat("x", 256)},
		"tries":       {"bad", func(string, int) error { return errBroken }, 3},
		"panic":       {"bad", func(string, int) error { panic("oh") }, 3},
		"the handler": {"bad", func(string, int) error { return fmt.Errorf("%w: no JSON", kafka.ErrPoison) }, 1},
		"unavailable": {"bad", func(_ string, call int) error {
			if call <= 10 {
				return store.ErrUnavailable
			}
			return errBroken
		}, 13},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newKafkaBench(t)
			b.produce(t, 0, "0-0", test.poison, "0-1")
			f := &failingRecords{fail: func(event string, call int) error {
				if event == test.poison {
					return test.fail(event, call)
				}
				return nil
			}}
			c := b.config(t)
			c.Handle, c.MaxAttempts = f.handle, 3
			err := startKafka(t, c).wait(t)
			where := "topic charges, partition 0, offset 1"
			if !errors.Is(err, kafka.ErrPoison) || !strings.Contains(fmt.Sprint(err), where) {
				t.Errorf("Run ended with %v", err)
			}
			b.awaitCommitted(t, 1)
			if got := fmt.Sprint(b.applied(t)); got != "[0-0]" {
				t.Errorf("applied: %s", got)
			}
			if got := f.count(test.poison); got != test.calls {
				t.Errorf("%d calls, want %d", got, test.calls)
			}
		})
	}
}

// OnPoison puts records aside, and the consumer goes on behind them; an OnPoison that fails is asked again.
func TestKafkaOnPoisonDecides(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	b.produce(t, 0, "0-0", "", "bad", "0-1")
	f := &failingRecords{fail: func(event string, _ int) error {
		if event == "bad" {
			return errBroken
		}
		return nil
	}}
	c := b.config(t)
	c.Handle, c.MaxAttempts = f.handle, 2
	var asked []string
	c.OnPoison = func(_ context.Context, r *kgo.Record, cause error) error {
		asked = append(asked, fmt.Sprintf("%d %v", r.Offset, errors.Is(cause, errBroken)))
		if len(asked) == 2 {
			return errors.New("the dead letters' table is locked")
		}
		return nil
	}
	run := startKafka(t, c)
	b.awaitCommitted(t)
	run.stop(t)
	if got := fmt.Sprint(asked); got != "[1 false 2 true 2 true]" {
		t.Errorf("asked about %s", got)
	}
	if got := fmt.Sprint(b.applied(t)); got != "[0-0 0-1]" {
		t.Errorf("applied: %s", got)
	}
}
