package main

import (
	"context"
	"database/sql"
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

func (c *sqliteContender) turn(
	ctx context.Context, file string, callers int, length time.Duration,
) (rate float64, err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(filepath.Dir(file)) }()
	a, err := c.open(ctx, file)
	if err != nil {
		return 0, err
	}
	if _, err = repeat(callers, length/warmUpPart, a.operate); err == nil {
		rate, err = repeat(callers, length, a.operate)
	}
	if closeErr := a.close(); err == nil {
		err = closeErr
	}
	return rate, err
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
	rates := make(series)
	for round := range o.rounds {
		for i, c := range sqliteContenders {
			if err := ctx.Err(); err != nil {
				return err
			}
			rate, err := c.turn(ctx, filepath.Join(dir, fmt.Sprintf("%d-%d", round, i), "bench.db"), manyCallers, o.time)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			rates.add(c.name, rate)
		}
	}
	t := &table{title: "Operations a second on SQLite, synchronous=FULL", head: []string{"way", callersHead(manyCallers)}}
	for _, c := range sqliteContenders {
		t.add(c.name, grouped(rates.median(c.name)))
	}
	r.keep(t)
	for _, f := range sqliteFigures {
		r.judge(f.name, rates.ratio(f.way, f.rivals...))
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
