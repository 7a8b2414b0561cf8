package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// The work that a transaction protects.
const (
	createBusiness = `CREATE TABLE payment (
		id INTEGER PRIMARY KEY, reference TEXT NOT NULL, amount INTEGER NOT NULL, detail TEXT NOT NULL) STRICT`
	insertBusiness = `INSERT INTO payment (reference, amount, detail) VALUES (?, ?, ?)`
)

// businessRow is what is inserted: every contender writes the same.
var businessRow = []any{"ORD-2024-000184", 18497, "card tok_1MzxLq2eZvKYlo2CqQTfYQ4B"}

// reservation is what a handler of the HTTP side would ask for.
func reservation(key string) *store.Reservation {
	r := &store.Reservation{
		ID: store.ID{Scope: "alice", Key: key}, Operation: "POST /payments",
		Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1}}, Lease: 30 * time.Second, Retention: 24 * time.Hour,
	}
	copy(r.Fingerprints[0].Sum[:], key)
	copy(r.Nonce[:], key)
	return r
}

// completion is the answer that is stored.
func completion() store.Completion {
	return store.Completion{Response: store.Response{
		Status: http.StatusCreated,
		Header: []store.HeaderField{{Name: "Content-Type", Value: contentType}, {Name: "Location", Value: location}},
		Body:   []byte(answer),
	}}
}

// openReserved is reserve and complete.
func openReserved(ctx context.Context, file string) (*arena, error) {
	store, err := sqlite.Open(ctx, file)
	if err != nil {
		return nil, err
	}
	return &arena{
		operate: func(ctx context.Context) error { return reserveAndComplete(ctx, store, newKey()) },
		close:   store.Close,
	}, nil
}

func reserveAndComplete(ctx context.Context, s store.Store, key string) error {
	r := reservation(key)
	v, err := s.Reserve(ctx, r)
	if err := decided(v, err, store.DecisionExecute); err != nil {
		return err
	}
	done := completion()
	_, err = s.Complete(ctx, store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, &done)
	return err
}

// decided makes sure that the store did what is measured.
func decided(v store.Verdict, err error, want store.Decision) error {
	if err == nil && v.Decision != want {
		err = fmt.Errorf("the store decided %s instead of %s", v.Decision, want)
	}
	return err
}

// openTransactional is the claim, one insert and the stored answer in one transaction.
func openTransactional(ctx context.Context, file string) (*arena, error) {
	store, err := sqlite.Open(ctx, file)
	if err != nil {
		return nil, err
	}
	a := &arena{
		operate: func(ctx context.Context) error { return transact(ctx, store) },
		close:   store.Close,
	}
	err = store.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, createBusiness)
		return err
	})
	return a, err
}

func transact(ctx context.Context, s *sqlite.Store) error {
	var inserted error
	v, err := s.Transact(ctx, reservation(newKey()), func(ctx context.Context, _ store.Verdict) store.Settlement {
		if _, inserted = onceward.Tx(ctx).ExecContext(ctx, insertBusiness, businessRow...); inserted != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		return store.Settlement{Action: store.TxCommit, Completion: completion()}
	})
	if inserted != nil {
		return inserted
	}
	return decided(v, err, store.DecisionExecute)
}

// replayedKeys is among how many completed keys a replay chooses.
const replayedKeys = 4096

// openReplay is the reservation of keys that are completed.
func openReplay(ctx context.Context, file string) (*arena, error) {
	s, err := sqlite.Open(ctx, file)
	if err != nil {
		return nil, err
	}
	keys := newKeys(replayedKeys)
	operate := func(ctx context.Context) error {
		v, err := s.Reserve(ctx, reservation(keys[rand.N(len(keys))]))
		return decided(v, err, store.DecisionReplay)
	}
	return &arena{operate: operate, close: s.Close}, fill(ctx, s, keys)
}

// fill completes keys, many at a time, so that they share commits.
func fill(ctx context.Context, store store.Store, keys []string) (err error) {
	var wg sync.WaitGroup
	var failed sync.Once
	for worker := range manyCallers {
		wg.Go(func() {
			for i := worker; i < len(keys); i += manyCallers {
				if failure := reserveAndComplete(ctx, store, keys[i]); failure != nil {
					failed.Do(func() { err = failure })
					return
				}
			}
		})
	}
	wg.Wait()
	return err
}
