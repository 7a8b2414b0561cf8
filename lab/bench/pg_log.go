package main

import (
	"context"
	"errors"
	"fmt"
)

// The log is counted for so many operations after a checkpoint, while pages are changed for the first time since, which
// logs the whole page; and then for so many in each turn, when that is over.
const (
	logOperations = 4_000
	logTurn       = 1_000
)

// logBytes is how many bytes of write-ahead log there are so far.
func (s *pgServer) logBytes(ctx context.Context) (n float64, err error) {
	err = s.admin.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8`).Scan(&n)
	return n, err
}

// countLog is how many bytes of log callers write for an operation.
func (s *pgServer) countLog(
	ctx context.Context, callers, times int, operate func(context.Context) error,
) (float64, error) {
	before, err := s.logBytes(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := repeatTimes(callers, times, operate); err != nil {
		return 0, err
	}
	after, err := s.logBytes(ctx)
	return (after - before) / float64(times), err
}

// logContest is what the log of a protected request is compared with. Nothing else runs on the server.
var logContest = pgContest{16, durably, []string{pgPlain, pgTransactional, pgReserved}, []comparison{
	{name: "postgres-wal-per-request", way: pgTransactional, rival: pgPlain},
	{name: "postgres-wal-per-request-reserved", way: pgReserved, rival: pgPlain},
}}

// measureLog compares the bytes of log that ways write for an operation, beside tables that fit into memory. Figures
// are for pages that have been changed since the last checkpoint. What is written before that is shown beside them.
func (s *pgServer) measureLog(ctx context.Context, o *options, r *report) error {
	c := &logContest
	if !o.wants(namesOf(c.figures)...) {
		return nil
	}
	first, later, order := make(series), make(series), o.order()
	err := s.assemble(ctx, c, c.ways, o.time, func(arenas []*arena) error {
		for i, a := range arenas {
			if err := s.exec(ctx, `CHECKPOINT`); err != nil {
				return err
			}
			if err := s.addLog(ctx, c, i, logOperations, a, first); err != nil {
				return err
			}
		}
		for range o.rounds {
			for _, i := range order.Perm(len(arenas)) {
				if err := s.addLog(ctx, c, i, logTurn, arenas[i], later); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	t := &table{
		title: "Bytes of write-ahead log an operation",
		head:  []string{"way", fmt.Sprintf("first %s after a checkpoint", grouped(logOperations)), "later"},
	}
	for _, name := range c.ways {
		t.add(name, grouped(first.median(name)), grouped(later.median(name)))
	}
	r.keep(t)
	for _, f := range c.figures {
		if _, promised := goals[f.name]; promised {
			r.judgeTurns(f.name, later.ratios(f.way, f.rival))
		} else {
			r.inform(f.name, later.ratio(f.way, f.rival))
		}
		r.inform(f.name+"-first", first.ratio(f.way, f.rival))
	}
	return nil
}

// addLog counts the log of one way of a contest.
func (s *pgServer) addLog(ctx context.Context, c *pgContest, way, times int, a *arena, bytes series) error {
	n, err := s.countLog(ctx, c.callers, times, a.operate)
	if err := errors.Join(ctx.Err(), err); err != nil {
		return fmt.Errorf("%s: %w", c.ways[way], err)
	}
	bytes.add(c.ways[way], n)
	return nil
}

// scaleLog is a kind of keys whose reservations are counted in bytes of log.
type scaleLog struct {
	name  string
	title string
	key   func() string
}

var scaleLogs = []scaleLog{
	{"postgres-scale-wal", "reservation of a random key", newKey},
	{"postgres-scale-wal-ordered", "reservation of a key ordered by time (UUIDv7)", newOrderedKey},
}

// measureScaleLog compares the bytes of log of a reservation in a large table with those in a small one. Before a turn
// there is a checkpoint, and as many reservations that do not count: a table whose pages have all been met by then
// logs changes alone, and one that is larger than that goes on to log whole pages.
func (s *pgServer) measureScaleLog(ctx context.Context, o *options, r *report, small, large *scaleSide) error {
	t := &table{
		title: "Bytes of write-ahead log an operation",
		head:  []string{"operation", small.name(), large.name(), "ratio"},
	}
	sides := []*scaleSide{small, large}
	for _, l := range scaleLogs {
		if !o.wants(l.name) {
			continue
		}
		bytes, order := make(series), o.order()
		for range o.rounds {
			for _, i := range order.Perm(len(sides)) {
				n, err := s.scaleLogTurn(ctx, sides[i], l.key)
				if err := errors.Join(ctx.Err(), err); err != nil {
					return fmt.Errorf("%s: %w", l.name, err)
				}
				bytes.add(sides[i].name(), n)
			}
		}
		ratios := bytes.ratios(large.name(), small.name())
		t.add(l.title, grouped(bytes.median(small.name())), grouped(bytes.median(large.name())),
			fmt.Sprintf("%.2f", median(ratios)))
		if _, promised := goals[l.name]; promised {
			r.judgeTurns(l.name, ratios)
		}
	}
	if len(t.rows) > 0 {
		r.keep(t)
	}
	return nil
}

func (s *pgServer) scaleLogTurn(ctx context.Context, side *scaleSide, key func() string) (float64, error) {
	reserve := side.reserveKeys(key)
	if err := s.exec(ctx, `CHECKPOINT`); err != nil {
		return 0, err
	}
	if _, err := repeatTimes(scaleCallers, logOperations, reserve); err != nil {
		return 0, err
	}
	return s.countLog(ctx, scaleCallers, logOperations, reserve)
}
