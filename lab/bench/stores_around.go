package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/limit"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/sealed"
	"github.com/onceward/onceward/store/tiered"
)

// wrapping puts something around the store on PostgreSQL. The result closes it.
type wrapping func(ctx context.Context, s *stage, inside pgStore) (pgStore, error)

func unwrapped(_ context.Context, _ *stage, inside pgStore) (pgStore, error) { return inside, nil }

// openFirst returns the claim, one business insert and the stored answer in a transaction of PostgreSQL, through a
// store with something around it.
func openFirst(wrap wrapping, body func() []byte) func(context.Context, *stage) (*arena, error) {
	return func(ctx context.Context, s *stage) (*arena, error) {
		site, leave, err := s.site(ctx)
		if err != nil {
			return nil, err
		}
		inside, err := openStore(ctx, site)
		if err != nil {
			return nil, errors.Join(err, leave())
		}
		done := completion()
		done.Response.Body = body()
		if err := errors.Join(oneRow.create(ctx, site), fillRecords(ctx, site, inside)); err != nil {
			return nil, errors.Join(err, inside.Close(), leave())
		}
		st, err := wrap(ctx, s, inside)
		if err != nil {
			return nil, errors.Join(err, inside.Close(), leave())
		}
		return &arena{
			operate: func(ctx context.Context) error {
				return transactOnce(ctx, st, reservation(newKey()), done, oneRow.work, store.DecisionExecute)
			},
			check: func(ctx context.Context, done int64) error { return oneRow.checkRecords(ctx, site, done) },
			close: func() error { return errors.Join(st.Close(), leave()) },
		}, nil
	}
}

func shortBody() []byte { return []byte(answer) }

// sealSecret is the key that the stores here are sealed with.
const sealSecret = "thirty-two bytes that are secret"

// sealing seals what the store keeps.
func sealing(_ context.Context, _ *stage, inside pgStore) (pgStore, error) {
	return sealed.New(inside, sealed.Config{Keys: []sealed.Key{{ID: 1, Secret: []byte(sealSecret)}}})
}

// lookUps counts what a front was asked, and what it answered.
type lookUps struct{ asked, hits atomic.Int64 }

// Observe implements [onceward.Observer].
func (l *lookUps) Observe(_ context.Context, event onceward.ObserverEvent) {
	if e, ok := event.(tiered.LookedUpEvent); ok {
		l.asked.Add(1)
		if e.Hit {
			l.hits.Add(1)
		}
	}
}

// frontAge is longer than any contest: what is replayed is what the front holds.
const frontAge = 30 * time.Minute

// withFront puts a Redis in front of a store.
func withFront(
	ctx context.Context, p *redisPlace, inside store.Store, observer onceward.Observer,
) (*tiered.Store, error) {
	front, err := redis.OpenFront(ctx, p.url)
	if err != nil {
		return nil, err
	}
	return tiered.New(inside, front, tiered.Config{
		MaxAge: frontAge, Observer: observer, Logger: slog.New(slog.DiscardHandler),
	})
}

// fronted puts the Redis of the stage in front of the store.
func fronted(ctx context.Context, s *stage, inside pgStore) (pgStore, error) {
	p, err := s.place()
	if err != nil {
		return nil, err
	}
	p.client.Close()
	return withFront(ctx, p, inside, nil)
}

// openTieredReplay is the replay of keys that are completed in PostgreSQL and are in the Redis in front of it.
func openTieredReplay(ctx context.Context, s *stage) (*arena, error) {
	site, leave, err := s.site(ctx)
	if err != nil {
		return nil, err
	}
	inside, err := openStore(ctx, site)
	if err != nil {
		return nil, errors.Join(err, leave())
	}
	p, err := s.place()
	if err != nil {
		return nil, errors.Join(err, inside.Close(), leave())
	}
	asked := &lookUps{}
	st, err := withFront(ctx, p, inside, asked)
	if err != nil {
		return nil, errors.Join(err, inside.Close(), leave())
	}
	keys := newKeys(replayedKeys)
	err = errors.Join(fill(ctx, inside, keys), fillFront(ctx, st, p, keys))
	asked.asked.Store(0)
	asked.hits.Store(0)
	return &arena{
		operate: func(ctx context.Context) error { return replayOnce(ctx, st, reservation(keys[rand.N(len(keys))])) },
		check:   func(context.Context, int64) error { return asked.mostlyHits() },
		close:   p.close(st.Close, leave),
	}, err
}

// mostlyHits makes sure that it was the front that answered.
func (l *lookUps) mostlyHits() error {
	asked, hits := l.asked.Load(), l.hits.Load()
	if hits < asked*99/100 {
		return fmt.Errorf("the front answered %d of %d look-ups: too few to measure it", hits, asked)
	}
	return nil
}

// fillFront replays each key until the front holds them all: it is filled beside the requests, and not by each.
func fillFront(ctx context.Context, st store.Store, p *redisPlace, keys []string) error {
	for end := time.Now().Add(10 * time.Second); ; {
		var next atomic.Int64
		_, err := repeatTimes(min(len(keys), manyCallers), len(keys), func(ctx context.Context) error {
			return replayOnce(ctx, st, reservation(keys[next.Add(1)-1]))
		})
		if err != nil {
			return err
		}
		if err := p.holds(ctx, len(keys)); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// openFrontGet is a GET of as many bytes as the front holds for a record.
func openFrontGet(ctx context.Context, s *stage) (*arena, error) {
	p, err := s.place()
	if err != nil {
		return nil, err
	}
	inside := memory.New()
	st, err := withFront(ctx, p, inside, nil)
	if err != nil {
		return nil, err
	}
	keys := newKeys(1)
	err = errors.Join(fill(ctx, inside, keys), fillFront(ctx, st, p, keys))
	var key, value int
	if err == nil {
		key, value, err = p.onlyValue(ctx)
	}
	if err := errors.Join(err, p.close(st.Close)()); err != nil {
		return nil, err
	}
	return s.getOf(ctx, key, value)
}

// limitedScopes is how many tenants share the operations.
const limitedScopes = 100

// openDo returns operations of a guard on Redis under new keys, with limits whose counters are in the same Redis, or
// without limits.
func openDo(limited bool) func(context.Context, *stage) (*arena, error) {
	return func(ctx context.Context, s *stage) (*arena, error) {
		st, p, err := openRedis(ctx, s)
		if err != nil {
			return nil, err
		}
		config := onceward.Config{Secret: []byte("a secret of enough random bytes ")}
		closing := []func() error{st.Close}
		if limited {
			// High enough that no operation is refused.
			limiter, err := limit.New(limit.Config{Counters: st.Counters(), Limits: limit.Limits{
				NewKeys: limit.Rate{Limit: 10_000_000, Window: time.Minute}, ActiveKeys: 10_000_000,
			}})
			if err != nil {
				return nil, err
			}
			config.Limiter = limiter
			closing = append([]func() error{func() error { return limiter.Close(context.Background()) }}, closing...)
		}
		guard, err := onceward.New(st, config)
		if err != nil {
			return nil, err
		}
		return &arena{
			operate: func(ctx context.Context) error { return doOnce(ctx, guard) },
			check:   p.expect,
			close:   p.close(closing...),
		}, nil
	}
}

var reservedOption = onceward.Reserved(onceward.FailureUnknown)

// doOnce does nothing once.
func doOnce(ctx context.Context, guard *onceward.Guard) error {
	call := onceward.Call{
		Scope: fmt.Sprintf("tenant-%d", rand.N(limitedScopes)), Key: newKey(), Operation: "pay", Payload: orderBytes,
	}
	nothing := func(context.Context) ([]byte, error) { return []byte(answer), nil }
	result, err := guard.Do(ctx, call, nothing, reservedOption)
	if err == nil && (result.Replayed || len(result.Value) != len(answer)) {
		err = fmt.Errorf("the result was %+v", result)
	}
	return err
}

// sealedPages are the answers whose sealed size is measured.
var sealedPages = []struct {
	figure, about string
	page          func() []byte
}{
	{"sealed-4k-bytes", "payments as providers show them", listAnswer},
	{"sealed-4k-bytes-lean", "little but ids and numbers", leanAnswer},
}

// measureSealed compares the bytes of a record, sealed and not. It needs no server: the record is measured in the form
// that every store can keep it in.
func measureSealed(ctx context.Context, o *options, r *report) error {
	t := &table{
		title: "Bytes of a record with its answer",
		head:  []string{"answer", "answer alone", "record", "sealed record"},
	}
	for _, p := range sealedPages {
		if !o.wants(p.figure) {
			continue
		}
		plain, closed, err := sealedSize(ctx, p.page())
		if err != nil {
			return err
		}
		ratio := float64(closed) / float64(plain)
		if _, promised := goals[p.figure]; promised {
			r.judge(p.figure, ratio)
		} else {
			r.note("%s: %.2f, without a goal", p.figure, ratio)
		}
		t.add(p.about, grouped(float64(len(p.page()))), grouped(float64(plain)), grouped(float64(closed)))
	}
	if len(t.rows) > 0 {
		r.keep(t)
	}
	return nil
}

// sealedSize completes a record with that answer, and returns how long it is, unsealed and sealed.
func sealedSize(ctx context.Context, page []byte) (plain, closed int, err error) {
	inside := memory.New()
	st, err := sealed.New(inside, sealed.Config{Keys: []sealed.Key{{ID: 1, Secret: []byte(sealSecret)}}})
	if err != nil {
		return 0, 0, err
	}
	r := reservation(newKey())
	v, err := st.Reserve(ctx, r)
	if err := decided(v, err, store.DecisionExecute); err != nil {
		return 0, 0, err
	}
	done := completion()
	done.Response.Body = page
	if _, err := st.Complete(ctx, store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, &done); err != nil {
		return 0, 0, err
	}
	opened, err := st.Get(ctx, r.ID)
	if err == nil && string(opened.Response.Body) != string(page) {
		err = errors.New("the sealed answer did not come back")
	}
	if err != nil {
		return 0, 0, err
	}
	kept, err := inside.Get(ctx, r.ID)
	return len(opened.AppendBinary(nil)), len(kept.AppendBinary(nil)), err
}
