package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// pgRecords counts the records of the store in the state completed.
const pgRecords = `SELECT count(*) FROM onceward_record WHERE state / 10 = 2`

// transactOnce does work once under the key, in the transaction of the store.
func transactOnce(
	ctx context.Context, s store.Transactor, r *store.Reservation, done store.Completion,
	work func(context.Context, pgx.Tx) error, want store.Decision,
) error {
	var failed error
	v, err := s.Transact(ctx, r, func(ctx context.Context, _ store.Verdict) store.Settlement {
		if failed = work(ctx, storeTx(ctx)); failed != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		return store.Settlement{Action: store.TxCommit, Completion: done}
	})
	if failed != nil {
		return failed
	}
	return decided(v, err, want)
}

// noWork is for measurements of the protection alone.
func noWork(context.Context, pgx.Tx) error { return nil }

// openTransactional is the claim, the business and the stored answer in one transaction.
func (b *pgBusiness) openTransactional(ctx context.Context, s *pgSite) (*arena, error) {
	st, err := openStore(ctx, s)
	if err != nil {
		return nil, err
	}
	return &arena{
		operate: func(ctx context.Context) error {
			return transactOnce(ctx, st, reservation(newKey()), completion(), b.work, store.DecisionExecute)
		},
		check: func(ctx context.Context, done int64) error { return b.checkRecords(ctx, s, done) },
		close: st.Close,
	}, errors.Join(b.create(ctx, s), fillRecords(ctx, s, st))
}

// checkRecords makes sure that each operation did the work once and left a completed record.
func (b *pgBusiness) checkRecords(ctx context.Context, s *pgSite, done int64) error {
	if err := s.expect(ctx, done+s.rows, pgRecords); err != nil {
		return err
	}
	return b.check(ctx, s, done)
}

// fillRecords makes as many records as there are payments.
func fillRecords(ctx context.Context, s *pgSite, st pgStore) error {
	if err := transactOnce(ctx, st, reservation(newKey()), completion(), noWork, store.DecisionExecute); err != nil {
		return err
	}
	return cloneRecords(ctx, s, int(s.rows)-1, false)
}

// openReservedOperation is the business in a transaction of its own, between reserve and complete.
func (b *pgBusiness) openReservedOperation(ctx context.Context, s *pgSite) (*arena, error) {
	st, err := openStore(ctx, s)
	if err != nil {
		return nil, err
	}
	return &arena{
		operate: func(ctx context.Context) error {
			return reserveWorkComplete(ctx, st, newKey(), func(ctx context.Context) error { return b.plainly(ctx, s) })
		},
		check: func(ctx context.Context, done int64) error { return b.checkRecords(ctx, s, done) },
		close: st.Close,
	}, errors.Join(b.create(ctx, s), fillRecords(ctx, s, st))
}

// storeOpener opens a store with or without batches.
type storeOpener func(context.Context, *pgSite) (pgStore, error)

// openReserveComplete returns reserve and complete with nothing in between.
func openReserveComplete(opener storeOpener) func(context.Context, *pgSite) (*arena, error) {
	return func(ctx context.Context, s *pgSite) (*arena, error) {
		store, err := opener(ctx, s)
		if err != nil {
			return nil, err
		}
		return &arena{
			operate: func(ctx context.Context) error { return reserveAndComplete(ctx, store, newKey()) },
			check:   func(ctx context.Context, done int64) error { return s.expect(ctx, done, pgRecords) },
			close:   store.Close,
		}, nil
	}
}

// replayOnce asks the store for the answer to a key that is completed, and makes sure that the whole of it came back.
func replayOnce(ctx context.Context, s store.Store, r *store.Reservation) error {
	v, err := s.Reserve(ctx, r)
	if err := decided(v, err, store.DecisionReplay); err != nil {
		return err
	}
	if got := len(v.Record.Response.Body); got != len(answer) {
		return fmt.Errorf("the replay has a body of %d bytes, want %d", got, len(answer))
	}
	return nil
}

// openPGReplay is the replay of keys that are completed, chosen at random.
func openPGReplay(ctx context.Context, s *pgSite) (*arena, error) {
	store, err := openStore(ctx, s)
	if err != nil {
		return nil, err
	}
	keys := newKeys(replayedKeys)
	return &arena{
		operate: func(ctx context.Context) error { return replayOnce(ctx, store, reservation(keys[rand.N(len(keys))])) },
		check:   func(ctx context.Context, _ int64) error { return s.expect(ctx, int64(replayedKeys), pgRecords) },
		close:   store.Close,
	}, fill(ctx, store, keys)
}

// pgStore is what the measurements need of the store.
type pgStore interface {
	store.Store
	store.Transactor
	store.Reaper
	Close() error
}

// openStore opens the store in the schema of a turn, with transactions on its pool. Reservations go over a few
// connections of the store's own.
func openStore(ctx context.Context, s *pgSite) (pgStore, error) {
	options := []postgres.Option{postgres.WithSchema(s.schema)}
	if s.terms.settings["synchronous_commit"] == "off" {
		// The store warns of commits that can be lost, as it should, but here they are meant to be.
		options = append(options, postgres.WithLogger(slog.New(slog.DiscardHandler)))
	}
	return postgres.New(ctx, s.pool, options...)
}

// openSingly opens the store so that each call is a statement of its own, on as many connections as the pool may have.
func openSingly(ctx context.Context, s *pgSite) (pgStore, error) {
	return postgres.New(ctx, s.pool, postgres.WithSchema(s.schema), postgres.WithoutBatching())
}

// storeTx is the transaction that protected work writes through.
func storeTx(ctx context.Context) pgx.Tx { return postgres.Tx(ctx) }
