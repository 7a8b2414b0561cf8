package dynamodb_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/dynamodb"
)

// TestCollectorLimits: what cannot be committed is an error of the collector, and nothing of it is sent, also if the
// handler takes no notice and answers with success.
func TestCollectorLimits(t *testing.T) {
	t.Parallel()
	s, wire, where := disturbed(t)
	rows := newBusiness(t, where)
	own, _, _ := strings.Cut(strings.TrimPrefix(where, "dynamodb://"), "?")
	for _, test := range []struct {
		name    string
		collect func(c *dynamodb.Collector) error
		want    error
	}{
		{"100 writes", func(c *dynamodb.Collector) (err error) {
			for range dynamodb.MaxWrites {
				must(t, c.Put(rows.row("many")))
			}
			return c.Put(rows.row("many"))
		}, dynamodb.ErrTooManyWrites},
		{"4 MB", func(c *dynamodb.Collector) (err error) {
			for range 12 {
				put := rows.row("large")
				put.Item["body"] = &types.AttributeValueMemberB{Value: make([]byte, 350<<10)}
				err = c.Put(put)
			}
			return err
		}, dynamodb.ErrWritesTooLarge},
		{"the store's own table by its ARN", func(c *dynamodb.Collector) error {
			arn := "arn:aws:dynamodb:eu-central-1:123456789012:table/" + own
			return c.Delete(types.Delete{TableName: &arn, Key: map[string]types.AttributeValue{}})
		}, dynamodb.ErrOwnTable},
		{"the store's own table", func(c *dynamodb.Collector) error {
			return c.Delete(types.Delete{TableName: &own, Key: map[string]types.AttributeValue{}})
		}, dynamodb.ErrOwnTable},
	} {
		wire.Requests()
		_, err := s.Transact(t.Context(), request(test.name), func(ctx context.Context, _ store.Verdict) store.Settlement {
			if err := test.collect(dynamodb.Writes(ctx)); !errors.Is(err, test.want) {
				t.Errorf("%s: the collector says %v, want %v", test.name, err, test.want)
			}
			return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
		})
		if !errors.Is(err, store.ErrWorkRefused) || !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want ErrWorkRefused and %v", test.name, err, test.want)
		}
		if n := wire.Requests()["TransactWriteItems"]; n != 0 {
			t.Errorf("%s: %d transactions were sent", test.name, n)
		}
		transact(t, s, request(test.name), store.DecisionExecute, nil)
	}
	transact(t, s, request("99 writes"), store.DecisionExecute, func(ctx context.Context) (err error) {
		for range dynamodb.MaxWrites {
			err = errors.Join(err, rows.insert(ctx, "99"))
		}
		return err
	})
	if n := rows.count("99"); n != dynamodb.MaxWrites {
		t.Errorf("%d rows, want %d", n, dynamodb.MaxWrites)
	}
}

// TestWorkRefused: a condition of the handler's that is not met undoes everything, and the error says which it was. The
// key is free at once.
func TestWorkRefused(t *testing.T) {
	t.Parallel()
	s, _, where := disturbed(t)
	rows := newBusiness(t, where)
	absent := rows.row("balance")
	refused := func(ctx context.Context) error {
		return errors.Join(rows.insert(ctx, "paid"), dynamodb.Writes(ctx).Check(types.ConditionCheck{
			TableName: &rows.table, Key: absent.Item, ConditionExpression: aws.String("attribute_exists(#value)"),
			ExpressionAttributeNames: map[string]string{"#value": "value"},
		}))
	}
	_, err := s.Transact(t.Context(), request("key"), committing(t, refused))
	if !errors.Is(err, store.ErrWorkRefused) || !strings.Contains(fmt.Sprint(err), "item 1, a Check in "+rows.table) {
		t.Errorf("got %v, want ErrWorkRefused with the item", err)
	}
	if n := rows.count("paid"); n != 0 {
		t.Errorf("E1: %d rows of refused work", n)
	}
	transact(t, s, request("key"), store.DecisionExecute, func(ctx context.Context) error {
		return errors.Join(rows.insert(ctx, "paid"), dynamodb.Writes(ctx).Put(absent))
	})
	if n := rows.count("paid"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

// TestTx: there is no *sql.Tx, and who asks for one is told so.
func TestTx(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, "no *sql.Tx in this context") {
			t.Errorf("onceward.Tx panicked with %q", said)
		}
		transact(t, s, request("key"), store.DecisionExecute, nil) // the panic has left the key free
	}()
	_, _ = s.Transact(t.Context(), request("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
		onceward.Tx(ctx)
		return store.Settlement{}
	})
}

// TestCommitReplyLost: the reply to a commit is lost, again and again. It is repeated under the same name, and at last
// the store asks, by an attempt to take the claim back: it never guesses.
func TestCommitReplyLost(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	wire := servers.NewDynamoDBTransport(1)
	t.Cleanup(wire.Close)
	s, rows := trying(t, where, wire, 1), newBusiness(t, where)
	for _, test := range []struct {
		name  string
		fault servers.DynamoDBFault
		times int
		want  int
	}{
		{"once", servers.DynamoDBReplyLost, 1, 1},
		{"always", servers.DynamoDBReplyLost, 8, 1},
		{"never sent", servers.DynamoDBNotSent, 8, 0},
		{"throttled", servers.DynamoDBThrottled, 3, 1},
	} {
		wire.Arm(test.fault, test.times, anyOf("TransactWriteItems"))
		_, err := s.Transact(t.Context(), request(test.name), committing(t, func(ctx context.Context) error {
			return rows.insert(ctx, test.name)
		}))
		if (err == nil) != (test.want == 1) || errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("%s: got %v", test.name, err)
		}
		if n := rows.count(test.name); n != test.want {
			t.Errorf("%s: %d rows, want %d", test.name, n, test.want)
		}
		v, err := s.Transact(t.Context(), request(test.name), committing(t, func(ctx context.Context) error {
			return rows.insert(ctx, test.name)
		}))
		if n := rows.count(test.name); err != nil || n != 1 {
			t.Errorf("I1: %s: after a retry that got (%s, %v) there are %d rows, want 1", test.name, v.Decision, err, n)
		}
	}
}

// TestCommitUnknown: neither the commit nor the question after it is answered. The outcome is unknown, and is learned
// when the claim is over: by a replay if the commit had landed, or by executing what then can not land any more.
func TestCommitUnknown(t *testing.T) {
	t.Parallel()
	for _, landed := range []bool{true, false} {
		t.Run(fmt.Sprint("landed ", landed), func(t *testing.T) {
			t.Parallel()
			where := newURL(t)
			wire := servers.NewDynamoDBTransport(1)
			t.Cleanup(wire.Close)
			s, rows := trying(t, where, wire, 1), newBusiness(t, where)
			var clock atomic.Int64
			clock.Store(time.Now().UnixMicro())
			s.SetClock(func() time.Time { return time.UnixMicro(clock.Load()).UTC() })
			fault := servers.DynamoDBNotSent
			if landed {
				fault = servers.DynamoDBReplyLost
			}
			wire.Arm(fault, 8, anyOf("TransactWriteItems"))
			wire.Arm(servers.DynamoDBNotSent, 1, anyOf("DeleteItem"))
			insert := committing(t, func(ctx context.Context) error { return rows.insert(ctx, "row") })
			_, err := s.Transact(t.Context(), request("key"), insert)
			if !errors.Is(err, store.ErrOutcomeUnknown) {
				t.Fatalf("got %v, want ErrOutcomeUnknown", err)
			}
			want := store.DecisionReplay
			if !landed {
				reserve(t, s, request("key"), store.DecisionInProgress)
				clock.Add((leased + time.Second).Microseconds())
				want = store.DecisionExecute
			}
			v, err := s.Transact(t.Context(), request("key"), insert)
			if n := rows.count("row"); err != nil || v.Decision != want || n != 1 {
				t.Errorf("I1: the retry got (%s, %v), and there are %d rows, want %s and 1", v.Decision, err, n, want)
			}
		})
	}
}

// TestClaimIsTakenOver: a node stands still in mid-work for longer than its claim. Another one takes the key and
// commits; when the first one wakes up, nothing of its work can be committed any more, and it gets the other's answer.
func TestClaimIsTakenOver(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	first, second, rows := open(t, where), open(t, where), newBusiness(t, where)
	later := time.Now().Add(time.Hour)
	second.SetClock(func() time.Time { return later })
	runs := 0
	v, err := first.Transact(t.Context(), request("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
		runs++
		must(t, rows.insert(ctx, "first"))
		transact(t, second, request("key"), store.DecisionExecute, func(ctx context.Context) error {
			return rows.insert(ctx, "second")
		})
		return store.Settlement{Action: store.TxCommit, Completion: *answer("first")}
	})
	if err != nil || v.Decision != store.DecisionReplay || runs != 1 {
		t.Errorf("got (%s, %v) after %d runs, want the other's answer", v.Decision, err, runs)
	}
	if a, b := rows.count("first"), rows.count("second"); a != 0 || b != 1 {
		t.Errorf("I1: %d rows of the first and %d of the second, want 0 and 1", a, b)
	}
}

// TestStepCommitReplyLost: the reply to a step's commit is lost, and a heartbeat comes between it and the question: the
// record says by which commit it came there.
func TestStepCommitReplyLost(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	wire := servers.NewDynamoDBTransport(1)
	t.Cleanup(wire.Close)
	s, rows, beside := trying(t, where, wire, 1), newBusiness(t, where), open(t, where)
	c := claimOf(reserve(t, s, request("key"), store.DecisionExecute))
	beat := func(operation string) bool {
		if operation == "PutItem" { // the question: the heartbeat comes right before it
			must(t, beside.Extend(context.Background(), c, time.Hour))
		}
		return false
	}
	wire.Arm(servers.DynamoDBReplyLost, 8, anyOf("TransactWriteItems"))
	wire.Arm(servers.DynamoDBReplyLost, 1, beat)
	err := s.CheckpointTx(t.Context(), c, time.Minute, func(ctx context.Context) (store.Checkpoint, error) {
		return store.Checkpoint{Point: "charged"}, rows.insert(ctx, "charged")
	})
	rec, getErr := beside.Get(t.Context(), c.ID)
	must(t, getErr)
	if n := rows.count("charged"); err != nil || n != 1 || rec.Point != "charged" {
		t.Errorf("got %v, %d rows and the point %q, want the step to have succeeded", err, n, rec.Point)
	}
}

// TestStepWhoseRepliesAreLost: all replies to a step's commit are lost, and an operator removes the record before the
// question: the step is committed, so its owner does not get an error that says the opposite (E7).
func TestStepWhoseRepliesAreLost(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	wire := servers.NewDynamoDBTransport(1)
	t.Cleanup(wire.Close)
	s, rows, beside := trying(t, where, wire, 1), newBusiness(t, where), open(t, where)
	c := claimOf(reserve(t, s, request("key"), store.DecisionExecute))
	wire.Arm(servers.DynamoDBReplyLost, 8, anyOf("TransactWriteItems"))
	wire.Arm(servers.DynamoDBReplyLost, 1, func(operation string) bool {
		if operation == "PutItem" { // the question: the removal comes right before it
			must(t, beside.Bust(context.Background(), c.ID, true))
		}
		return false
	})
	err := s.CheckpointTx(t.Context(), c, time.Minute, func(ctx context.Context) (store.Checkpoint, error) {
		return store.Checkpoint{Point: "charged"}, rows.insert(ctx, "charged")
	})
	if n := rows.count("charged"); n != 1 || !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("E7: %d rows are committed, and the owner got %v, want ErrOutcomeUnknown", n, err)
	}
}

// TestLargeAnswers: what does not fit into an item ends as the rules for answers that are too large say (A4).
func TestLargeAnswers(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	large := answer(strings.Repeat("x", 500<<10))
	c := claimOf(reserve(t, s, request("reserved"), store.DecisionExecute))
	for range 2 { // the second repeats the first, whose reply might have been lost
		_, err := s.Complete(t.Context(), c, large)
		must(t, err)
	}
	_, err := s.Complete(t.Context(), c, answer("another"))
	wantFenced(t, err)
	v := reserve(t, s, request("reserved"), store.DecisionReplay)
	if r := v.Record.Response; !r.NotStored || len(r.Body) != 0 || r.Status != large.Response.Status ||
		len(r.Header) != 1 {
		t.Errorf("A4: stored with status %d, %d header fields and %d bytes, not stored %t", r.Status, len(r.Header),
			len(r.Body), r.NotStored)
	}
	_, err = s.Transact(t.Context(), request("transactional"), func(context.Context, store.Verdict) store.Settlement {
		return store.Settlement{Action: store.TxCommit, Completion: *large}
	})
	if !errors.Is(err, store.ErrWorkRefused) || !errors.Is(err, dynamodb.ErrTooLarge) {
		t.Errorf("A4: a transaction with a large answer got %v, want ErrWorkRefused and ErrTooLarge", err)
	}
	transact(t, s, request("transactional"), store.DecisionExecute, nil)
	c = claimOf(reserve(t, s, request("phased"), store.DecisionExecute))
	err = s.Checkpoint(t.Context(), c, store.Checkpoint{Point: "charged", Data: large.Response.Body})
	if !errors.Is(err, dynamodb.ErrTooLarge) || !errors.Is(err, store.ErrInvalidEvent) {
		t.Errorf("carried data that does not fit got %v, want ErrTooLarge", err)
	}
	must(t, s.Release(t.Context(), c, "nothing was done"))
}

// overtaken keeps the first transaction that is sent, and delivers it when it is told to; it loses what gives the claim
// back.
type overtaken struct {
	mu   sync.Mutex
	kept *http.Request
	body []byte
}

// RoundTrip implements [http.RoundTripper].
func (o *overtaken) RoundTrip(r *http.Request) (*http.Response, error) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case operation == "TransactWriteItems" && o.kept == nil:
		var err error
		o.kept = r.Clone(context.Background())
		o.body, err = io.ReadAll(r.Body)
		return nil, errors.Join(err, errors.New("the connection was reset"))
	case operation == "DeleteItem":
		return nil, errors.New("the connection was reset")
	default:
		return http.DefaultTransport.RoundTrip(r)
	}
}

func (o *overtaken) deliver(t *testing.T) {
	o.kept.Body = io.NopCloser(bytes.NewReader(o.body))
	response, err := http.DefaultTransport.RoundTrip(o.kept)
	must(t, err)
	must(t, response.Body.Close())
}

// TestRefusedAndLanded: a commit is refused by a condition of the handler's, and a try of it that was sent before
// arrives when the condition holds. As long as that can happen, nobody is told that nothing was done (I4).
func TestRefusedAndLanded(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	wire := &overtaken{}
	s, rows := open(t, where, dynamodb.WithTransport(wire)), newBusiness(t, where)
	stock := rows.row("stock")
	_, err := s.Transact(t.Context(), request("key"), committing(t, func(ctx context.Context) error {
		return errors.Join(rows.insert(ctx, "paid"), rows.require(ctx, stock))
	}))
	_, putErr := rows.client.PutItem(t.Context(), &ddb.PutItemInput{TableName: &rows.table, Item: stock.Item})
	must(t, putErr)
	wire.deliver(t)
	if n := rows.count("paid"); n != 1 || !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("I4: there are %d rows, and the caller was told %v, want 1 and ErrOutcomeUnknown", n, err)
	}
	reserve(t, s, request("key"), store.DecisionReplay)
}

// TestRefusedStepCannotLand: the same for a step, whose record is stored again: the try that was sent before then comes
// too late (I4).
func TestRefusedStepCannotLand(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	wire := &overtaken{}
	s, rows := open(t, where, dynamodb.WithTransport(wire)), newBusiness(t, where)
	stock := rows.row("stock")
	c := claimOf(reserve(t, s, request("key"), store.DecisionExecute))
	err := s.CheckpointTx(t.Context(), c, time.Minute, func(ctx context.Context) (store.Checkpoint, error) {
		return store.Checkpoint{Point: "paid"}, errors.Join(rows.insert(ctx, "paid"), rows.require(ctx, stock))
	})
	_, putErr := rows.client.PutItem(t.Context(), &ddb.PutItemInput{TableName: &rows.table, Item: stock.Item})
	must(t, putErr)
	wire.deliver(t)
	if n := rows.count("paid"); n != 0 || !errors.Is(err, store.ErrWorkRefused) {
		t.Errorf("I4: there are %d rows, and the owner got %v, want 0 and ErrWorkRefused", n, err)
	}
}

// TestOwnersWhoLost: what a store remembers for owners who have lost their records it forgets when they learn of it.
func TestOwnersWhoLost(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	s, later := open(t, where), open(t, where)
	later.SetClock(func() time.Time { return time.Now().Add(time.Hour) })
	c := claimOf(reserve(t, s, request("key"), store.DecisionExecute))
	if swept, err := later.Sweep(t.Context(), 10); swept != 1 || err != nil {
		t.Fatalf("%d were swept (%v), want 1", swept, err)
	}
	wantFenced(t, s.Extend(t.Context(), c, time.Minute))
	if n := s.Held(); n != 0 {
		t.Errorf("%d records are remembered, want none", n)
	}
}
