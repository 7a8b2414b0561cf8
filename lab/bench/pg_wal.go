package main

import (
	"context"
	"fmt"
	"slices"
)

// The write-ahead log is measured in tables that are no longer empty, because the first change of a page after a checkpoint
// logs the whole page, and keys that come at random change pages at random.
const (
	logBefore = 50_000
	logCount  = 10_000
)

// measureLog counts what an operation adds to the write-ahead log, for information.
func (s *pgServer) measureLog(ctx context.Context, o *options, r *report) error {
	if !o.wants("postgres-wal") {
		return nil
	}
	t := &table{
		title: fmt.Sprintf("Bytes of write-ahead log an operation, 16 callers, over %s operations after a checkpoint", grouped(logCount)),
		head:  []string{"way", "bytes"},
	}
	for _, name := range []string{pgPlain, pgTransactional, pgReserved, pgSerializable} {
		c := &pgContenders[slices.IndexFunc(pgContenders, func(c pgContender) bool { return c.name == name })]
		bytes, err := s.logOf(ctx, c)
		if err != nil {
			return err
		}
		t.add(name, grouped(bytes))
	}
	r.keep(t)
	return nil
}

// logOf returns the bytes an operation of a contender. The log is the same whether or not a commit waits for it.
func (s *pgServer) logOf(ctx context.Context, c *pgContender) (bytes float64, err error) {
	const callers = 16
	err = s.visit(ctx, callers, lazily, func(site *pgSite) error {
		return s.run(ctx, c, site, func(a *pgArena) error {
			if _, err := repeatTimes(callers, logBefore-a.filled, a.operate); err != nil {
				return err
			}
			if err := s.exec(ctx, `CHECKPOINT`); err != nil {
				return err
			}
			bytes, err = s.logged(ctx, func() error {
				_, err := repeatTimes(callers, logCount, a.operate)
				return err
			})
			bytes /= logCount
			return err
		})
	})
	return bytes, err
}

// logged returns how far the log went while something was done.
func (s *pgServer) logged(ctx context.Context, do func() error) (bytes float64, err error) {
	const position = `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8`
	var before, after float64
	if err := s.admin.QueryRow(ctx, position).Scan(&before); err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	err = s.admin.QueryRow(ctx, position).Scan(&after)
	return after - before, err
}
