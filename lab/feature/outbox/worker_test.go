package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
)

// TestOnlyWhatIsCommitted is I10: a message is delivered if and only if its transaction was committed.
func TestOnlyWhatIsCommitted(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := new(clerk)
		undone := errors.New("the card was declined")
		err := b.store.InTx(b.Context(), func(ctx context.Context) error {
			if _, err := b.box.Add(ctx, onceward.Tx(ctx), about("", "rolled-back")); err != nil {
				return err
			}
			return undone
		})
		if !errors.Is(err, undone) {
			b.Fatalf("the transaction ended with %v", err)
		}
		b.must(b.store.InTx(b.Context(), func(ctx context.Context) error {
			if _, err := b.box.Add(ctx, onceward.Tx(ctx), about("", "committed")); err != nil {
				return err
			}
			// Nobody delivers while it is not committed.
			b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}), outbox.Report{})
			return nil
		}))
		mail.want(b, "before the commit", "")
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}), outbox.Report{Delivered: 1})
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}), outbox.Report{})
		mail.want(b, "I10", "committed")
	})
}

// TestReport: each way in which a delivery can end is counted and observed, and a message for later is left for later.
func TestReport(t *testing.T) {
	inTime(t, func(b *bench) {
		events := new(journal)
		mail := &clerk{does: fails(errDown, "fails")}
		later := about("", "later")
		later.Delay = time.Hour
		b.add(about("", "fine"), about("", "fine"), about("", "fails"), later)
		w := b.worker(b.store, outbox.Route{Handler: mail.deliver, MaxAttempts: 2}, watched(events))
		b.run(w, outbox.Report{Delivered: 2, Retried: 1})
		time.Sleep(time.Second)
		b.run(w, outbox.Report{DeadLetters: 1})
		time.Sleep(time.Hour)
		b.run(w, outbox.Report{Delivered: 1})
		mail.wantEach(b, "each as often as needed", map[string]int{"fine": 2, "fails": 2, "later": 1})
		for _, e := range events.events {
			if e.Topic != topic || e.Message == "" || e.Attempts == 0 || (e.Err == nil) != (e.Outcome == "done") {
				b.Errorf("the observer was told %+v", e)
			}
		}
		slices.SortFunc(events.events, func(x, y outbox.DeliveredEvent) int { return strings.Compare(x.Outcome, y.Outcome) })
		events.want(b, "one event for each delivery", "dead letter, done, done, done, retry")
	})
}

// TestOtherTopics: a worker leaves those without a route to other workers, and takes none without a topic.
func TestOtherTopics(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := new(clerk)
		other, captured := about("", "other"), about("", "captured")
		other.Topic, captured.Topic = "refunds", ""
		ids := b.add(other, captured, about("", "own"))
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}), outbox.Report{Delivered: 1})
		mail.want(b, "its own", "own")
		b.wantStates("the others", ids, outbox.StateReady, outbox.StateCaptured, outbox.StateDone)
	})
}

// TestOrderWithinAnAggregate: the order is that of commits, however many are delivered at once.
func TestOrderWithinAnAggregate(t *testing.T) {
	inTime(t, func(b *bench) {
		const aggregates, each = 5, 20
		for n := range each {
			for a := range aggregates {
				b.add(about(fmt.Sprint(a), fmt.Sprintf("%d/%02d", a, n)))
			}
		}
		mail := &clerk{does: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			time.Sleep(time.Millisecond) // the others go on meanwhile
			return outbox.Result{}, nil
		}}
		began := time.Now()
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}), outbox.Report{Delivered: aggregates * each})
		if took := time.Since(began); took > aggregates*each*time.Millisecond {
			b.Errorf("it took %s: the aggregates waited for each other", took)
		}
		seen := mail.deliveries()
		slices.SortStableFunc(seen, func(x, y string) int { return strings.Compare(x[:1], y[:1]) })
		if !slices.IsSorted(seen) || len(seen) != aggregates*each {
			b.Errorf("the messages were delivered in the order %q", seen)
		}
	})
}

// TestOvertaking: a slow message holds up its own aggregate and nothing else, also of those that come later.
func TestOvertaking(t *testing.T) {
	inTime(t, func(b *bench) {
		letGo := make(chan struct{})
		mail := &clerk{does: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.Type == "slow" {
				<-letGo
			}
			return outbox.Result{}, nil
		}}
		stop := b.start(b.worker(b.store, outbox.Route{Handler: mail.deliver}))
		defer stop()
		b.add(about("a", "slow"))
		synctest.Wait()
		behind := b.add(about("a", "behind"), about("b", "x"), about("", "y"))
		synctest.Wait()
		mail.wantEach(b, "others overtake", map[string]int{"slow": 1, "x": 1, "y": 1})
		b.wantStates("its own aggregate waits", behind, outbox.StateBehind, outbox.StateDone, outbox.StateDone)
		close(letGo)
		synctest.Wait()
		mail.wantEach(b, "and goes on", map[string]int{"slow": 1, "x": 1, "y": 1, "behind": 1})
	})
}

// TestOneAggregateInTwoTopics: order is kept within a topic, and the same name in another topic or of another type is
// something else.
func TestOneAggregateInTwoTopics(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := &clerk{does: fails(errDown, "stuck")}
		otherTopic, otherType := about("a", "x"), about("a", "y")
		otherTopic.Topic, otherType.AggregateType = "refunds", "order"
		ids := b.add(about("a", "stuck"), about("a", "behind"), otherTopic, otherType)
		w := b.worker(b.store, outbox.Route{}, func(c *outbox.WorkerConfig) {
			c.Routes = map[string]outbox.Route{topic: {Handler: mail.deliver}, "refunds": {Handler: mail.deliver}}
		})
		b.run(w, outbox.Report{Delivered: 2, Retried: 1})
		b.wantStates("only its own waits", ids, outbox.StateReady, outbox.StateBehind, outbox.StateDone, outbox.StateDone)
	})
}
