package dynamodb_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/dynamodb"
	"github.com/onceward/onceward/store/storetest"
)

// TestLostReplies loses the reply to each write once. The client sends it again, and the condition that is not met then
// tells that it has landed (S6, S9): whatever a repetition by another caller would be told, this one succeeded.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	wire := servers.NewDynamoDBTransport(1)
	t.Cleanup(wire.Close)
	s, ctx := trying(t, where, wire, 3), t.Context()
	lose := func() { wire.Arm(servers.DynamoDBReplyLost, 1, writes) }
	for _, test := range []struct {
		name string
		call func(c store.Claim) error
		want func(rec store.Record) bool
	}{
		{"extend", func(c store.Claim) error { return s.Extend(ctx, c, time.Hour) }, func(rec store.Record) bool {
			return rec.LeaseUntil.Sub(rec.CreatedAt) > 50*time.Minute
		}},
		{"checkpoint", func(c store.Claim) error {
			return s.Checkpoint(ctx, c, store.Checkpoint{Point: "charged"})
		}, func(rec store.Record) bool { return rec.Point == "charged" }},
		{"complete", func(c store.Claim) error {
			_, err := s.Complete(ctx, c, answer("done"))
			return err
		}, func(rec store.Record) bool { return rec.State == store.StateCompleted }},
		{"release", func(c store.Claim) error { return s.Release(ctx, c, "no stock") }, func(rec store.Record) bool {
			return rec.State == store.StateRetryable
		}},
		{"abandon", func(c store.Claim) error { return s.Abandon(ctx, c, "timeout") }, func(rec store.Record) bool {
			return rec.State == store.StateUnknown
		}},
		{"begin reconcile", func(c store.Claim) error {
			must(t, s.Abandon(ctx, c, "timeout"))
			lose()
			return s.BeginReconcile(ctx, c, 0, time.Minute)
		}, func(rec store.Record) bool { return rec.ReconcileCount == 1 }},
		{"bust", func(c store.Claim) error { return s.Bust(ctx, c.ID, true) }, func(rec store.Record) bool {
			return rec.State == store.StateExpired
		}},
	} {
		lose()
		v := reserve(t, s, request(test.name), store.DecisionExecute)
		if v.Origin != store.OriginCreated {
			t.Errorf("%s: a reservation whose reply was lost is %s, want created", test.name, v.Origin)
		}
		lose()
		if err := test.call(claimOf(v)); err != nil {
			t.Errorf("%s: its reply was lost once, and it got %v", test.name, err)
		}
		rec, err := s.Get(ctx, v.Record.ID)
		if err != nil || !test.want(rec) {
			t.Errorf("%s: the record is %s (%v): %+v", test.name, rec.State, err, rec)
		}
	}
	added, err := s.AddExternalEvent(ctx, store.ExternalEvent{Source: "psp", EventID: "1", Scope: "acme", Subject: "x"})
	must(t, err)
	lose()
	again, err := s.AddExternalEvent(ctx, store.ExternalEvent{Source: "psp", EventID: "2", Scope: "acme", Subject: "x"})
	must(t, err)
	if !added || !again {
		t.Errorf("events were added: %t, and with a lost reply %t, want both", added, again)
	}
}

// between loses the reply to one write, and does something before it says so.
type between struct {
	do atomic.Pointer[func()]
}

// RoundTrip implements [http.RoundTripper].
func (b *between) RoundTrip(r *http.Request) (*http.Response, error) {
	do := b.do.Load()
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || do == nil || !writes(operation) || !b.do.CompareAndSwap(do, nil) {
		return response, err
	}
	_ = response.Body.Close() // it is lost
	(*do)()
	return nil, errors.New("the connection was reset")
}

// TestWrittenOverBeforeRepeated loses the reply to a write, and another node writes before it is repeated: the
// repetition does not find its name, and is told what is true all the same (S6).
func TestWrittenOverBeforeRepeated(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	other := open(t, where)
	wire := &between{}
	s, ctx := open(t, where, dynamodb.WithTransport(wire)), t.Context()
	interpose := func(do func()) { wire.do.Store(&do) }

	t.Run("complete", func(t *testing.T) {
		c := claimOf(reserve(t, s, request("complete"), store.DecisionExecute))
		interpose(func() {
			_, err := other.Retain(ctx, c.ID, 48*time.Hour)
			must(t, err)
		})
		_, err := s.Complete(ctx, c, answer("done"))
		must(t, err)
		reserve(t, other, request("complete"), store.DecisionReplay)
	})
	t.Run("abandon", func(t *testing.T) {
		c := claimOf(reserve(t, s, request("abandon"), store.DecisionExecute))
		interpose(func() { must(t, other.BeginReconcile(ctx, c, 0, time.Minute)) })
		must(t, s.Abandon(ctx, c, "timeout"))
	})
	for name, free := range map[string]func(c store.Claim) error{
		"release": func(c store.Claim) error { return s.Release(ctx, c, "no stock") },
		"reject":  func(c store.Claim) error { return s.Reject(ctx, c) },
		"bust": func(c store.Claim) error {
			must(t, s.Release(ctx, c, "no stock"))
			interpose(func() { reserve(t, other, request("bust"), store.DecisionExecute) })
			return s.Bust(ctx, c.ID, false)
		},
	} {
		c := claimOf(reserve(t, s, request(name), store.DecisionExecute))
		if name != "bust" {
			interpose(func() { reserve(t, other, request(name), store.DecisionExecute) })
		}
		if err := free(c); err != nil {
			t.Errorf("S6: %s: it was done, and a retry goes on, but who did it is told %v", name, err)
		}
	}
	t.Run("resolve", func(t *testing.T) {
		later := open(t, where) // past the margin
		later.SetClock(func() time.Time { return time.Now().Add(time.Minute) })
		for name, resolve := range map[string]func(c store.Claim) error{
			"not executed": func(c store.Claim) error { return s.ResolveNotExecuted(ctx, c, "not there") },
			"step":         func(c store.Claim) error { return s.ResolveStep(ctx, c, store.Checkpoint{Point: "charged"}) },
		} {
			resumed := func() *store.Reservation {
				r := request(name)
				r.OnLost = store.LostResume
				return r
			}
			c := claimOf(reserve(t, s, resumed(), store.DecisionExecute))
			must(t, s.Abandon(ctx, c, "timeout"))
			interpose(func() {
				next := claimOf(reserve(t, later, resumed(), store.DecisionExecute))
				must(t, later.Extend(ctx, next, time.Minute))
			})
			if err := resolve(c); err != nil {
				t.Errorf("I16: %s: it was resolved, and a retry goes on, but who resolved it is told %v", name, err)
			}
			wantFenced(t, resolve(c))
		}
	})
	t.Run("rewrite", func(t *testing.T) {
		c := claimOf(reserve(t, s, request("rewrite"), store.DecisionExecute))
		must(t, s.Checkpoint(ctx, c, store.Checkpoint{Point: "charged", Data: []byte("old key")}))
		must(t, s.Release(ctx, c, "no stock"))
		from, to := store.Content{Data: []byte("old key")}, store.Content{Data: []byte("new key")}
		interpose(func() { reserve(t, other, request("rewrite"), store.DecisionExecute) })
		must(t, s.Rewrite(ctx, c, from, to))
		rec, err := other.Get(ctx, c.ID)
		if must(t, err); string(rec.Data) != "new key" {
			t.Errorf("S6: a rewrite succeeded, and the record carries %q", rec.Data)
		}
		if err := s.Rewrite(ctx, c, to, from); !errors.Is(err, store.ErrFenced) {
			t.Errorf("S6: a rewrite by an attempt that is over got %v, want ErrFenced", err)
		}
	})
}

// TestThrottled: the client waits and repeats, within the bounds of its caller, and then says that nothing is known.
func TestThrottled(t *testing.T) {
	t.Parallel()
	s, wire, _ := disturbed(t)
	wire.Arm(servers.DynamoDBThrottled, 2, writes)
	complete(t, s, "throttled twice", "done")
	wire.Arm(servers.DynamoDBThrottled, 1000, writes)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	await.Return(t, "a call ends with its caller's time, while all are throttled", func() {
		if _, err := s.Reserve(ctx, request("throttled")); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
	})
}

// TestSentLater delivers writes when their callers have long gone on: they find that the record has changed, and do
// nothing.
func TestSentLater(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	wire := servers.NewDynamoDBTransport(1)
	t.Cleanup(wire.Close)
	s, calm := trying(t, where, wire, 1), open(t, where)
	wire.Disturb(100*time.Millisecond, nil)
	for i := range 20 {
		c := claimOf(reserve(t, calm, request(fmt.Sprint(i)), store.DecisionExecute))
		rec, err := s.Get(t.Context(), c.ID)
		must(t, err)
		wire.Arm(servers.DynamoDBSentLater, 1, anyOf("PutItem"))
		if err := s.Abandon(t.Context(), c, "late"); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("a write that was cut off got %v, want ErrUnavailable", err)
		}
		_, err = calm.Complete(t.Context(), claimOf(store.Verdict{Record: rec}), answer("done"))
		must(t, err)
	}
	wire.Close()
	for i := range 20 {
		rec, err := calm.Get(t.Context(), store.ID{Scope: "acme", Key: fmt.Sprint(i)})
		if err != nil || rec.State != store.StateCompleted {
			t.Errorf("I7: the record %d is %s (%v), want completed: a late write came over it", i, rec.State, err)
		}
	}
}

// noise is what a bad day is like.
var noise = map[servers.DynamoDBFault]float64{
	servers.DynamoDBNotSent: 0.03, servers.DynamoDBReplyLost: 0.05, servers.DynamoDBSentLater: 0.03,
	servers.DynamoDBThrottled: 0.05, servers.DynamoDBLate: 0.05,
}

// TestRaceOfNodes lets eight nodes race for the same keys, half of them in transactions, while requests get lost: each
// operation is executed once.
func TestRaceOfNodes(t *testing.T) {
	t.Parallel()
	nodes, keys := 8, nightly.Either(200, 50)
	where := newURL(t)
	rows := newBusiness(t, where)
	var stores []*dynamodb.Store
	for i := range nodes {
		wire := servers.NewDynamoDBTransport(uint64(i))
		t.Cleanup(wire.Close)
		stores = append(stores, trying(t, where, wire, 20))
		wire.Disturb(5*time.Millisecond, noise)
	}
	executed := make([]atomic.Int32, keys)
	var racing sync.WaitGroup
	for _, s := range stores {
		racing.Go(func() {
			for key := range keys {
				raceFor(t, s, rows, key, &executed[key])
			}
		})
	}
	racing.Wait()
	for key := range keys {
		name := fmt.Sprint("key-", key)
		rec, err := stores[0].Get(t.Context(), store.ID{Scope: "acme", Key: name})
		if err != nil || rec.State != store.StateCompleted {
			t.Errorf("%s is %s (%v), want completed", name, rec.State, err)
		}
		if key%2 == 0 && executed[key].Load() != 1 {
			t.Errorf("I1: %s was executed %d times", name, executed[key].Load())
		}
		if n := rows.count(name); key%2 == 1 && n != 1 {
			t.Errorf("I1: the writes of %s were committed %d times", name, n)
		}
	}
}

// raceFor asks for a key until it is settled.
func raceFor(t *testing.T, s *dynamodb.Store, rows *business, key int, executed *atomic.Int32) {
	name := fmt.Sprint("key-", key)
	for {
		r := request(name)
		var v store.Verdict
		var err error
		if key%2 == 1 {
			v, err = s.Transact(t.Context(), r, committing(t, func(ctx context.Context) error {
				return rows.insert(ctx, name)
			}))
		} else if v, err = s.Reserve(t.Context(), r); err == nil && v.Decision == store.DecisionExecute {
			executed.Add(1)
			_, err = s.Complete(t.Context(), claimOf(v), answer("done"))
		}
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
			return
		case v.Decision == store.DecisionReplay || v.Decision == store.DecisionExecute:
			return
		case v.Decision != store.DecisionInProgress:
			t.Errorf("%s: got %s", name, v.Decision)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestStoreOnABadDay runs the suite while requests get lost, are throttled and come late.
func TestStoreOnABadDay(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it is long; TestRaceOfNodes has such days, and TestEachRequestOfATransaction loses each request")
	var seed atomic.Uint64
	storetest.Run(t, storetest.Harness{
		Features: features,
		Open: func(t testing.TB) storetest.Instance {
			where := newURL(t)
			wire := servers.NewDynamoDBTransport(seed.Add(1))
			t.Cleanup(wire.Close)
			s := trying(t, where, wire, 20)
			var clock atomic.Int64
			clock.Store(time.Now().UnixMicro())
			s.SetClock(func() time.Time { return time.UnixMicro(clock.Load()).UTC() })
			rows := newBusiness(t, where)
			wire.Disturb(5*time.Millisecond, noise)
			return storetest.Instance{
				Store: s, Advance: func(d time.Duration) { clock.Add(d.Microseconds()) },
				Business: &storetest.Business{Insert: rows.insert, Count: rows.count, Collects: true},
			}
		},
	})
}
