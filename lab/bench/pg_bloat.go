package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// bloatDay is a day of traffic in a minute and a half: the store's clock moves on by steps, after each of which the
// reaper comes. A record lives for a fifth of the day.
var bloatDay = day{inserts: 1_000_000, steps: 200, pace: 450 * time.Millisecond, life: 24 * time.Hour / 5}

// day is traffic that comes and goes.
type day struct {
	inserts, steps int
	// pace is how long a step takes at least, so that the server can do its upkeep.
	pace time.Duration
	// life is how long a record lives by the store's clock.
	life time.Duration
}

// step is how far the store's clock moves in one.
func (d *day) step() time.Duration { return 24 * time.Hour / time.Duration(d.steps) }

// bloatSettings let the server keep up with a day that short: it looks for work each second, which is its least, not
// each minute, and does it without pauses.
var bloatSettings = []string{
	"shared_buffers=1GB", "autovacuum=on", "autovacuum_naptime=1s", "autovacuum_vacuum_cost_delay=0",
}

// measureBloat compares the size of a table of records after many of them have come and gone with that of a fresh one
// that holds what is left.
func measureBloat(ctx context.Context, o *options, r *report) (err error) {
	const name = "postgres-bloat"
	if !o.wants(name) {
		return nil
	}
	s, err := openServer(ctx, o, bloatSettings...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r.note("%s", s.about)
	return s.visit(ctx, 1, lazily, func(used *pgSite) error {
		reaped, err := bloatDay.pass(ctx, used)
		if err != nil {
			return err
		}
		return s.visit(ctx, 1, lazily, func(fresh *pgSite) error {
			kept, err := fillFrom(ctx, fresh, used)
			if err != nil {
				return err
			}
			t := &table{
				title: fmt.Sprintf("Bytes on disk after %s inserts, of which %s were reaped",
					grouped(float64(bloatDay.inserts)), grouped(float64(reaped))),
				head: []string{"records", "table", "indexes"},
			}
			before, err := used.recordSize(ctx)
			if err != nil {
				return err
			}
			after, err := fresh.recordSize(ctx)
			if err != nil {
				return err
			}
			t.add(grouped(float64(kept))+" that are left", grouped(before.table), grouped(before.indexes))
			t.add("the same in a fresh table", grouped(after.table), grouped(after.indexes))
			r.keep(t)
			r.judge(name, (before.table+before.indexes)/(after.table+after.indexes))
			return nil
		})
	})
}

// The store takes the time from one function, which here adds what a table says.
const (
	setBloatClock = `CREATE TABLE bloat_clock (ahead bigint NOT NULL);
		INSERT INTO bloat_clock VALUES (0);
		CREATE OR REPLACE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
			SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint + ahead FROM bloat_clock
		$$`
	moveBloatClock = `UPDATE bloat_clock SET ahead = ahead + $1`
)

// pass inserts completed records step by step, has the store reap those that have expired, and returns how many that
// were.
func (d *day) pass(ctx context.Context, s *pgSite) (reaped int, err error) {
	st, err := openStore(ctx, s)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if _, err := s.pool.Exec(ctx, setBloatClock); err != nil {
		return 0, err
	}
	template := *s
	template.rows = 1
	if err := fillRecords(ctx, &template, st); err != nil {
		return 0, err
	}
	ticker := time.NewTicker(d.pace)
	defer ticker.Stop()
	for range d.steps {
		n, err := d.passStep(ctx, s, st)
		if err != nil {
			return 0, err
		}
		reaped += n
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return reaped, nil
}

// passStep is one step of it.
func (d *day) passStep(ctx context.Context, s *pgSite, st pgStore) (reaped int, err error) {
	if _, err := s.pool.Exec(ctx, moveBloatClock, d.step().Microseconds()); err != nil {
		return 0, err
	}
	now, err := s.count(ctx, `SELECT onceward_now()`)
	if err != nil {
		return 0, err
	}
	if err := cloneExpiring(ctx, s, d.inserts/d.steps, time.UnixMicro(now).Add(d.life), d.step()); err != nil {
		return 0, err
	}
	return reapDue(ctx, st)
}

// idleReaps is how many calls in a row remove nothing when nothing is left: a call may look at a part of the table.
const idleReaps = 8

// reapDue removes what has expired, and returns how many records that were.
func reapDue(ctx context.Context, st pgStore) (reaped int, err error) {
	for idle := 0; idle < idleReaps; idle++ {
		n, err := st.Reap(ctx, reapBatch, false)
		if err != nil {
			return 0, err
		}
		if reaped += n; n > 0 {
			idle = -1
		}
	}
	return reaped, nil
}

// fillFrom makes the store's tables in a fresh site, fills them with the records that are left in another, and
// returns how many those are.
func fillFrom(ctx context.Context, fresh, used *pgSite) (int64, error) {
	st, err := openStore(ctx, fresh)
	if err != nil {
		return 0, err
	}
	tag, err := fresh.pool.Exec(ctx, `INSERT INTO onceward_record SELECT * FROM `+used.schema+`.onceward_record
		WHERE state <> 0`) // zero is ballast, which is there already
	return tag.RowsAffected(), errors.Join(err, st.Close())
}

// recordSize is what the table of records takes.
func (site *pgSite) recordSize(ctx context.Context) (size keySize, err error) {
	err = site.pool.QueryRow(ctx, `SELECT pg_table_size(c)::float8, pg_indexes_size(c)::float8
		FROM CAST('onceward_record' AS regclass) c`).Scan(&size.table, &size.indexes)
	return size, err
}
