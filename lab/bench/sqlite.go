package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// sqliteContender is a way to do something once on SQLite, or to do it without protection.
type sqliteContender struct {
	name string
	// open makes a fresh database in the file.
	open func(ctx context.Context, file string) (*arena, error)
}

// warmUpPart is the part of a turn that runs once more before the measurement starts.
const warmUpPart = 4

// turn opens the contender, warms it up, and adds what it reached to the result.
func (c *sqliteContender) turn(ctx context.Context, res *result, file string, callers int, length time.Duration) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(filepath.Dir(file)) }()
	a, err := c.open(ctx, file)
	if err != nil {
		return err
	}
	if _, err = repeat(callers, length/warmUpPart, a.operate); err == nil {
		err = res.turn(ctx, c.name, callers, length, a, nil)
	}
	return errors.Join(err, a.close())
}

// The contenders on SQLite.
const (
	reserved      = "Onceward: reserve and complete"
	transactional = "Onceward: transactional, one insert"
	replay        = "Onceward: replay"
	naivePool     = "naive pool of 16: reserve and complete"
	singleWriter  = "single writer: reserve and complete"
	insertSingle  = "unprotected insert: single writer"
	insertPool    = "unprotected insert: pool of 16"
)

// The order puts those side by side that are compared.
var sqliteContenders = []sqliteContender{
	{naivePool, openNaivePool},
	{reserved, openReserved},
	{singleWriter, openSingleWriter},
	{replay, openReplay},
	{transactional, openTransactional},
	{insertSingle, openInsertSingle},
	{insertPool, openInsertPool},
}

// manyCallers is how many callers the goals are for.
const manyCallers = 64

// sqliteFigures compare one way with the best of others.
var sqliteFigures = []struct {
	name, way string
	rivals    []string
}{
	{"sqlite-vs-pool-c64", reserved, []string{naivePool}},
	{"sqlite-vs-single-c64", reserved, []string{singleWriter}},
	{"sqlite-transactional-c64", transactional, []string{insertSingle, insertPool}},
	{"sqlite-replay-c64", replay, []string{reserved, transactional}},
}

// measureSQLite lets all contenders take turns, each in a fresh database.
func measureSQLite(ctx context.Context, o *options, r *report) error {
	wanted := false
	for _, f := range sqliteFigures {
		wanted = wanted || o.wants(f.name)
	}
	if !wanted {
		return nil
	}
	dir, err := os.MkdirTemp(o.dir, "onceward-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	res, order := newResult(), o.order()
	for round := range o.rounds * turnsARound {
		for _, i := range order.Perm(len(sqliteContenders)) {
			c, file := &sqliteContenders[i], filepath.Join(dir, fmt.Sprintf("%d-%d", round, i), "bench.db")
			if err := errors.Join(ctx.Err(), c.turn(ctx, res, file, manyCallers, o.time)); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	columns := len(contestHead()) - 1 // there is no server
	t := &table{title: "Operations a second on SQLite, synchronous=FULL", head: contestHead()[:columns]}
	for _, c := range sqliteContenders {
		t.add(res.cells(c.name, manyCallers)[:columns]...)
	}
	r.keep(t)
	for _, f := range sqliteFigures {
		r.judgeTurns(f.name, res.rates.ratios(f.way, f.rivals...))
	}
	return noteSync(o, r)
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
