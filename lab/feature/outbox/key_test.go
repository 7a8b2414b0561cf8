package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
)

// adding is a transactional route that adds messages.
func adding(b *bench, box *outbox.Outbox, messages ...outbox.Message) http.Handler {
	b.Helper()
	return b.newGuard().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, m := range messages {
			if _, err := box.Add(r.Context(), onceward.Tx(r.Context()), m); err != nil {
				b.Error(err)
			}
		}
		w.WriteHeader(http.StatusCreated)
	}), onceward.Transactional(), onceward.OperationName("add"))
}

// distinct reports whether no two keys are the same.
func distinct(keys []string) bool {
	sorted := slices.Sorted(slices.Values(keys))
	return len(slices.Compact(sorted)) == len(keys)
}

// TestKeysOfAnOperation: they are the same whenever it is executed, and different for each of its messages.
func TestKeysOfAnOperation(t *testing.T) {
	inTime(t, func(b *bench) {
		spy, box := newSpy(b.T, b.store)
		own := about("a", "m")
		own.Step = "receipt"
		h := adding(b, box, about("a", "m"), about("b", "m"), own)
		post(h, "k")
		first := spy.keys()
		if len(first) != 3 || !distinct(first) {
			b.Fatalf("the keys are %q", first)
		}
		id := store.ID{Scope: "shop", Key: "k"}
		rec, err := b.store.Get(b.Context(), id)
		b.must(err)
		if want, err := b.newGuard().DownstreamKey(&rec, "outbox "+topic); err != nil || first[0] != want {
			b.Errorf("the key is %s, want %s, %v, which is that of the record", first[0], want, err)
		}
		for _, e := range spy.added {
			if e.Origin != id || e.OriginAttempt == 0 {
				b.Errorf("a message comes from %v, attempt %d", e.Origin, e.OriginAttempt)
			}
		}
		post(h, "k") // a replay adds nothing
		b.must(b.store.Bust(b.Context(), id, true))
		spy.added = nil
		post(h, "k")
		if again := spy.keys(); !slices.Equal(first, again) {
			b.Errorf("executed again the keys are %q after %q", again, first)
		}
		spy.added = nil
		post(h, "another")
		if others := spy.keys(); !distinct(append(others, first...)) {
			b.Errorf("another operation has the keys %q, the first %q", others, first)
		}
	})
}

// TestKeysWithoutAggregates: what a message is about is not part of its key, because a retry may give that another
// name.
func TestKeysWithoutAggregates(t *testing.T) {
	inTime(t, func(b *bench) {
		spy, box := newSpy(b.T, b.store)
		post(adding(b, box, about("a", "m")), "k")
		b.must(b.store.Bust(b.Context(), store.ID{Scope: "shop", Key: "k"}, true))
		post(adding(b, box, about("b", "n")), "k")
		if keys := spy.keys(); len(keys) != 2 || keys[0] != keys[1] {
			b.Errorf("the keys are %q", keys)
		}
	})
}

// TestKeysOfSteps: steps of a phased operation count for themselves, also after one that was resumed.
func TestKeysOfSteps(t *testing.T) {
	inTime(t, func(b *bench) {
		spy, box := newSpy(b.T, b.store)
		failing := true
		add := func(ctx context.Context, _ *struct{}) error {
			_, err := box.Add(ctx, onceward.Tx(ctx), about("a", "m"))
			return err
		}
		o, err := phase.New(phase.Definition[struct{}]{
			Name: "POST /orders", MinBackoff: time.Second,
			Steps: []phase.Step[struct{}]{phase.Local("book", add), phase.Local("mail", func(ctx context.Context, s *struct{}) error {
				err := errors.Join(add(ctx, s), add(ctx, s))
				if failing {
					return errors.Join(err, errDown)
				}
				return err
			})},
			Answer: func(*struct{}) phase.Answer { return phase.JSON(http.StatusCreated, "done") },
		})
		b.must(err)
		h := o.Handler(b.newGuard(), func(*http.Request) (*struct{}, error) { return new(struct{}), nil })
		post(h, "k")
		failing = false
		time.Sleep(time.Minute)
		if w := post(h, "k"); w.Code != http.StatusCreated {
			b.Fatalf("the answer is %d %s", w.Code, w.Body)
		}
		keys := spy.keys()
		if len(keys) != 5 || !distinct(keys[:3]) || !slices.Equal(keys[1:3], keys[3:]) {
			b.Errorf("the keys are %q, want those of the second step twice", keys)
		}
		mail := new(clerk)
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}), outbox.Report{Delivered: 3})
	})
}

// TestKeysWithoutAnOperation are random: who knows all else of a message, such as its ID, does not know its key.
func TestKeysWithoutAnOperation(t *testing.T) {
	t.Parallel()
	spy, box := newSpy(t, nil)
	for range 2 {
		if _, err := box.Add(t.Context(), new(sql.Tx), about("a", "m")); err != nil {
			t.Fatal(err)
		}
	}
	if keys := spy.keys(); !distinct(keys) || len(keys[0]) != 40 || spy.added[0].Origin != (store.ID{}) {
		t.Errorf("the keys are %q from %v", keys, spy.added[0].Origin)
	}
}

// TestKeysOfWhatFollows is B6: the receiver of a message cannot compute the key of what follows it, which goes to
// another one. With a guard the key is derived with its secret, without one it is random.
func TestKeysOfWhatFollows(t *testing.T) {
	t.Parallel()
	follow := func(b *bench, config outbox.Config) (parent, key string) {
		box, err := outbox.New(b.store, config)
		b.must(err)
		var first, next string
		first = b.add(about("", "charge"))[0]
		b.run(b.worker(b.store, outbox.Route{Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.Type != "charge" {
				return outbox.Result{}, nil
			}
			return outbox.Result{Then: func(ctx context.Context) (err error) {
				next, err = box.Add(ctx, onceward.Tx(ctx), about("", "receipt"))
				return err
			}}, nil
		}}), outbox.Report{Delivered: 2})
		return b.entry(first).DownstreamKey, b.entry(next).DownstreamKey
	}
	b := newBench(t)
	parent, key := follow(b, outbox.Config{Guard: b.newGuard()})
	if want := b.newGuard().FollowingKey(parent, topic); key != want {
		t.Errorf("the key behind %s is %s, want %s", parent, key, want)
	}
	outsider, err := onceward.New(b.store, onceward.Config{Secret: []byte("a secret of somebody else's")})
	b.must(err)
	if outsider.FollowingKey(parent, topic) == key {
		t.Error("an outsider has computed the key of what follows")
	}
	parent, key = follow(b, outbox.Config{})
	if len(key) != 40 || key == parent || key == b.newGuard().FollowingKey(parent, topic) {
		t.Errorf("without a guard the key behind %s is %s", parent, key)
	}
}

// TestTheKeyOfEachDelivery is O3: every try has the same ID and the same key.
func TestTheKeyOfEachDelivery(t *testing.T) {
	inTime(t, func(b *bench) {
		id := b.add(about("a", "m"))[0]
		want := b.entry(id).DownstreamKey
		tries := 0
		w := b.worker(b.store, outbox.Route{MaxAttempts: 5, Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			tries++
			if d.ID != id || d.DownstreamKey != want || d.Event().IdempotencyKey != want || d.Attempts != tries {
				b.Errorf("try %d is the %d. of %s under %s", tries, d.Attempts, d.ID, d.DownstreamKey)
			}
			return outbox.Result{}, errDown
		}})
		b.pauses(w, id)
		if tries != 5 {
			b.Errorf("there were %d tries", tries)
		}
	})
}
