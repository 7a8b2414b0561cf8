package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// TestAggregateHeldTooLong: a message of an answer that waits too long for another transaction leaves the outcome
// unknown. When that one ends, message and answer are committed together or not at all, and a retry learns which.
func TestAggregateHeldTooLong(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it waits until the store gives up; TestAggregateHeld has a bound of its own")
	u := newOutboxTest(t, "")
	holder, err := u.admin.Begin(t.Context())
	must(t, err)
	adder{t, u.box}.write(t.Context(), holder, "first")
	work := func(ctx context.Context) { adder{t, u.box}.answer(ctx, "second") }
	if err := handled(t, u.store, "key", store.TxCommit, work); !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("I5: %v, want ErrOutcomeUnknown", err)
	}
	must(t, holder.Commit(t.Context()))
	await.That(t, "the retry is answered", func() bool {
		settlement := store.Settlement{Action: store.TxCommit}
		settlement.Completion.Response.Status = 201
		v, err := u.store.Transact(t.Context(), reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
			work(ctx)
			return settlement
		})
		must(t, err)
		return v.Decision == store.DecisionReplay
	})
	if got, want := typesInOrder(t, u.store), "first second"; got != want {
		t.Errorf("O1: the messages are %q, want %q", got, want)
	}
}

// TestAggregateHeld: where statements have a lock timeout, an answer does not wait for an aggregate for longer than
// that. Nothing is executed.
func TestAggregateHeld(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "&lock_timeout=300ms")
	holder, err := u.admin.Begin(t.Context())
	must(t, err)
	adder{t, u.box}.write(t.Context(), holder, "first")
	work := func(ctx context.Context) { adder{t, u.box}.answer(ctx, "second") }
	if err := handled(t, u.store, "key", store.TxCommit, work); !errors.Is(err, store.ErrUnavailable) ||
		errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("I5: %v, want ErrUnavailable", err)
	}
	must(t, holder.Commit(t.Context()))
	must(t, handled(t, u.store, "key", store.TxCommit, work))
	if got, want := typesInOrder(t, u.store), "first second"; got != want {
		t.Errorf("O1: the messages are %q, want %q", got, want)
	}
}

// TestDeadlockWithAMessage: a handler that locks a row and adds a message to its answer, and a transaction of the
// application that does so the other way round, wait for each other. The handler is run again, and both are committed,
// unless the server chooses the other one.
func TestDeadlockWithAMessage(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "&deadlock_timeout=50ms")
	exec(t, u.admin, `CREATE TABLE business (value integer)`)
	exec(t, u.admin, `INSERT INTO business VALUES (0)`)
	const count = `UPDATE business SET value = value + 1`
	tx, err := u.admin.Begin(t.Context())
	must(t, err)
	adder{t, u.box}.write(t.Context(), tx, "of the application")
	runs, done := 0, make(chan error, 1)
	go func() {
		done <- handled(t, u.store, "key", store.TxCommit, func(ctx context.Context) {
			runs++
			if _, err := onceward.Tx(ctx).ExecContext(ctx, count); err != nil {
				t.Log(err) // a second run may be chosen too
			}
			adder{t, u.box}.answer(ctx, "of the handler")
		})
	}()
	awaitLockWait(t, u.url)
	wantRuns, want := 2, "of the application of the handler"
	if _, err := tx.Exec(t.Context(), count); err == nil {
		must(t, tx.Commit(t.Context()))
	} else {
		must(t, tx.Rollback(t.Context()))
		wantRuns, want = 1, "of the handler"
	}
	must(t, await.Value(t, "the end of the transaction", done))
	if got := typesInOrder(t, u.store); runs != wantRuns || got != want {
		t.Errorf("O1: the messages are %q after %d runs, want %q after %d", got, runs, want, wantRuns)
	}
}

// TestDeadlockOfWrittenAndAdded: of two handlers that each write a message at once about the aggregate for which the
// other one adds to its answer, one is run again: both are committed, and each message is there once.
func TestDeadlockOfWrittenAndAdded(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "&deadlock_timeout=50ms")
	var runs atomic.Int64
	var both sync.WaitGroup // have written
	both.Add(2)
	var group sync.WaitGroup
	for i, aggregates := range [][]string{{"1", "2"}, {"2", "1"}} {
		group.Go(func() {
			first := true
			err := handled(t, u.store, fmt.Sprint("key ", i), store.TxCommit, func(ctx context.Context) {
				runs.Add(1)
				message := func(place int) outbox.Message {
					return outbox.Message{Topic: "topic", AggregateID: aggregates[place], Type: fmt.Sprintf("%d%d", i, place)}
				}
				if _, err := postgres.AddMessage(ctx, u.box, postgres.Tx(ctx), message(0)); err != nil {
					t.Error(err)
				}
				if first {
					first = false
					both.Done()
					both.Wait()
				}
				if _, err := u.box.AddToAnswer(ctx, message(1)); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got := slices.Sorted(slices.Values(strings.Fields(typesInOrder(t, u.store)))); runs.Load() != 3 ||
		strings.Join(got, " ") != "00 01 10 11" {
		t.Errorf("O1: the messages are %q after %d runs, want each once after 3", got, runs.Load())
	}
}

// TestNoDeadlockOfMessages: handlers that add for two aggregates in opposite order do not wait for each other in a
// circle, however often.
func TestNoDeadlockOfMessages(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	runs := make([]int, 2)
	var group sync.WaitGroup
	for i, aggregates := range [][]string{{"1", "2"}, {"2", "1"}} {
		group.Go(func() {
			for n := range 200 {
				err := handled(t, u.store, fmt.Sprint(i, " ", n), store.TxCommit, func(ctx context.Context) {
					runs[i]++
					for _, aggregate := range aggregates {
						if _, err := u.box.AddToAnswer(ctx,
							outbox.Message{Topic: "topic", AggregateID: aggregate, Type: "t"}); err != nil {
							t.Error(err)
						}
					}
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if runs[0] != 200 || runs[1] != 200 {
		t.Errorf("the handlers ran %v times, want 200 each", runs)
	}
}

// TestAggregatesInOpposingOrder: transactions of InTx that write for two aggregates in opposite order may wait for each
// other in a circle. Then one is run again, and all of them are committed.
func TestAggregatesInOpposingOrder(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "&deadlock_timeout=50ms")
	const each = 3
	var group sync.WaitGroup
	for _, aggregates := range [][]string{{"1", "2"}, {"2", "1"}} {
		group.Go(func() {
			for range each {
				err := u.store.InTx(t.Context(), func(ctx context.Context) error {
					for _, aggregate := range aggregates {
						if _, err := postgres.AddMessage(ctx, u.box, postgres.Tx(ctx),
							outbox.Message{Topic: "topic", AggregateID: aggregate, Type: "t"}); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if got := len(strings.Fields(typesInOrder(t, u.store))); got != 4*each {
		t.Errorf("O1: %d messages are there, want %d", got, 4*each)
	}
}

// TestTransactionsOfTheApplicationWait: in a transaction that is not the store's a message is added at once, and a
// second one for the same aggregate waits until the first has ended, so that the order is that of commits.
func TestTransactionsOfTheApplicationWait(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	first, err := u.admin.Begin(t.Context())
	must(t, err)
	adder{t, u.box}.write(t.Context(), first, "first")
	done := make(chan error, 1)
	go func() {
		done <- pgx.BeginFunc(t.Context(), u.admin, func(tx pgx.Tx) error {
			adder{t, u.box}.write(t.Context(), tx, "second")
			return nil
		})
	}()
	awaitLockWait(t, u.url)
	must(t, first.Commit(t.Context()))
	must(t, await.Value(t, "the end of the transaction", done))
	if got, want := typesInOrder(t, u.store), "first second"; got != want {
		t.Errorf("O2: the messages are %q, want %q", got, want)
	}
}

// awaitLockWait waits until a session of the schema's user waits for an advisory lock.
func awaitLockWait(t testing.TB, url string) {
	t.Helper()
	admin := openAdmin(t, url)
	await.That(t, "a session waits for a lock", func() bool {
		return number(t, admin, `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE NOT l.granted AND a.query LIKE '%' || current_schema() || '%'`) > 0
	})
}

// typesInOrder are the types of all messages, in the order in which they are delivered.
func typesInOrder(t testing.TB, store *postgres.Store) string {
	t.Helper()
	claimed, err := store.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: "topic", Limit: 1000}}, 1e9)
	must(t, err)
	var types []string
	for i := range claimed {
		types = append(types, claimed[i].Type)
	}
	return strings.Join(slices.Clip(types), " ")
}
