package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

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

// The goals are for many callers; fewer are measured for information, in fewer rounds.
const (
	manyCallers = 64
	infoRounds  = 3
)

// measureSQLite runs all contenders with one, some and many callers.
func measureSQLite(ctx context.Context, o *options, r *report) error {
	dir, err := os.MkdirTemp(o.dir, "onceward-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	t := &table{
		title: "Operations a second on SQLite, synchronous=FULL",
		head:  []string{"way"},
	}
	for _, c := range sqliteContenders {
		t.add(c.name)
	}
	var many series
	for _, callers := range []int{1, 16, manyCallers} {
		if !o.wants(sqliteNames(callers)...) {
			continue
		}
		rates, err := runSQLite(ctx, o, dir, callers)
		if err != nil {
			return err
		}
		t.head = append(t.head, plural(callers))
		for i, c := range sqliteContenders {
			t.rows[i] = append(t.rows[i], grouped(rates.median(c.name)))
		}
		if callers == manyCallers {
			many = rates
		}
	}
	if len(t.head) == 1 {
		return nil
	}
	sync, err := syncTime(dir)
	if err != nil {
		return err
	}
	r.note("a write of 4 KiB with its fsync takes %s where the databases are", sync.Round(time.Microsecond))
	r.keep(t)
	if many != nil {
		judgeSQLite(r, many)
	}
	return nil
}

func plural(callers int) string {
	if callers == 1 {
		return "1 caller"
	}
	return fmt.Sprintf("%d callers", callers)
}

// sqliteNames are the names that choose the measurement with that many callers.
func sqliteNames(callers int) []string {
	if callers != manyCallers {
		return []string{fmt.Sprintf("sqlite-c%d", callers)}
	}
	return []string{"sqlite-c64", "sqlite-vs-pool-c64", "sqlite-vs-single-c64", "sqlite-transactional-c64", "sqlite-replay-c64"}
}

func judgeSQLite(r *report, rates series) {
	r.judge("sqlite-vs-pool-c64", rates.ratio(reserved, naivePool))
	r.judge("sqlite-vs-single-c64", rates.ratio(reserved, singleWriter))
	r.judge("sqlite-transactional-c64", rates.ratio(transactional, insertSingle, insertPool))
	r.judge("sqlite-replay-c64", rates.ratio(replay, reserved, transactional))
}

// runSQLite lets the contenders take turns, each in a fresh database, and returns their operations a second.
func runSQLite(ctx context.Context, o *options, dir string, callers int) (series, error) {
	rounds := o.rounds
	if callers != manyCallers {
		rounds = min(rounds, infoRounds)
	}
	rates := make(series)
	for round := range rounds {
		for i, c := range sqliteContenders {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			file := filepath.Join(dir, fmt.Sprintf("%d-%d-%d", callers, round, i), "bench.db")
			rate, err := c.turn(ctx, file, callers, o.time)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			rates.add(c.name, rate)
		}
	}
	return rates, nil
}
