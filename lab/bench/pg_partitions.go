package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward/store/postgres"
)

// The partitioned tables that are compared.
const (
	partitions          = 32
	smallPartitioned    = 200_000
	defaultPartitioned  = 20_000_000
	partitionedThrough  = 20_000 // records that go through the store; the others are copies
	partitionedBytes    = 420    // of disk for a record with its indexes
	partitionedLog      = 3      // gigabytes for the log while tables are filled
	partitionedPerMicro = 45     // microseconds to fill, convert and vacuum, for a record
)

// partitionedSteps are what is timed on partitioned tables; only the first has a goal.
var partitionedSteps = []scaleStep{
	{
		"postgres-partitioned-scale", "reserve and complete of a new key, 16 callers", scaleCallers, 3_000,
		calls((*scaleSide).reserveAndComplete),
	},
	{"postgres-partitioned-reap", "1,000 records reaped, one caller", 1, 16, (*scaleSide).reap},
}

func (s *scaleSide) reserveAndComplete(ctx context.Context) error {
	return reserveAndComplete(ctx, s.store, newKey())
}

// measurePartitions compares the cost of operations in a large partitioned table with that in a small one, and then with
// that of the same records in one table.
func measurePartitions(ctx context.Context, o *options, r *report) (err error) {
	if !o.wants(partitionedSteps[0].name, partitionedSteps[1].name) {
		return nil
	}
	records := o.keys
	if records == 0 {
		records = defaultPartitioned
	}
	if records <= smallPartitioned {
		return fmt.Errorf("bench: -keys must be more than the %d that it is compared with", smallPartitioned)
	}
	// The conversion to one table has both for a while.
	r.note("%s records need about %.0f GB of disk and %s", grouped(float64(records)),
		2*float64(records)*partitionedBytes/1e9+partitionedLog,
		(time.Duration(records) * partitionedPerMicro * time.Microsecond).Round(time.Minute))
	s, err := openServer(ctx, o, "shared_buffers=10GB")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r.note("%s", s.about)
	return s.withPartitions(ctx, r, smallPartitioned, func(small *scaleSide) error {
		return s.withPartitions(ctx, r, records, func(large *scaleSide) error {
			return s.comparePartitions(ctx, o, r, small, large)
		})
	})
}

// withPartitions fills a store with partitions, and hands it over.
func (s *pgServer) withPartitions(ctx context.Context, r *report, records int, use func(*scaleSide) error) error {
	return s.visit(ctx, scaleCallers, durably, func(site *pgSite) error {
		store, err := postgres.New(ctx, site.pool, postgres.WithSchema(site.schema), postgres.WithPartitions(partitions))
		if err != nil {
			return err
		}
		side := &scaleSide{records: records, site: site, store: store, keys: newKeys(partitionedThrough)}
		started := time.Now()
		if err = side.fill(ctx); err == nil {
			err = s.warm(ctx, r, side)
		}
		if err == nil {
			r.note("%s in %d partitions in place after %s", side.name(), partitions, time.Since(started).Round(time.Second))
			err = use(side)
		}
		return errors.Join(err, store.Close())
	})
}

// comparePartitions lets both sides take turns in each operation, and then looks at what partitions are for.
func (s *pgServer) comparePartitions(ctx context.Context, o *options, r *report, small, large *scaleSide) error {
	if err := s.exec(ctx, `CHECKPOINT`); err != nil {
		return err
	}
	t := &table{
		title: fmt.Sprintf("Microseconds an operation in %d partitions on %s", partitions, s.about),
		head:  []string{"operation", small.name(), large.name(), "ratio"},
	}
	spread := make(map[string]float64)
	for i := range partitionedSteps {
		step := &partitionedSteps[i]
		micros, err := compareStep(ctx, o, step, small, large)
		if err != nil {
			return err
		}
		ratio := micros.ratio(large.name(), small.name())
		spread[step.name] = micros.median(large.name())
		t.add(step.title, fmt.Sprintf("%.1f", micros.median(small.name())), fmt.Sprintf("%.1f", spread[step.name]),
			fmt.Sprintf("%.2f", ratio))
		if _, promised := goals[step.name]; promised {
			r.judge(step.name, ratio)
		}
	}
	r.keep(t)
	return errors.Join(s.compareForms(ctx, o, r, large, spread), noteSync(o, r))
}

// form is how the same records are kept, and what upkeep costs then.
type form struct {
	height, largest int64
	vacuum, longest time.Duration
}

// compareForms makes one table of the records, and says what was better and what was worse in partitions.
func (s *pgServer) compareForms(
	ctx context.Context, o *options, r *report, side *scaleSide, spread map[string]float64,
) error {
	parts, err := s.examineForm(ctx, side.site.pool, 0)
	if err != nil {
		return err
	}
	started := time.Now()
	if _, err := side.site.pool.Exec(ctx, `SELECT onceward_partition(0)`); err != nil {
		return err
	}
	r.note("%s made one table in %s, during which nothing is executed", side.name(), time.Since(started).Round(time.Second))
	if err := s.warm(ctx, r, side); err != nil {
		return err
	}
	t := &table{
		title: side.name() + " on " + s.about, head: []string{"", fmt.Sprintf("%d partitions", partitions), "one table"},
	}
	for i := range partitionedSteps {
		step := &partitionedSteps[i]
		micros := make(series)
		for range o.rounds {
			if err := errors.Join(ctx.Err(), scaleTurn(ctx, step, side, micros)); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
		}
		t.add(step.title+", µs", fmt.Sprintf("%.1f", spread[step.name]), fmt.Sprintf("%.1f", micros.median(side.name())))
	}
	whole, err := s.examineForm(ctx, side.site.pool, 1)
	if err != nil {
		return err
	}
	t.add("levels of the primary key above its leaves", fmt.Sprint(parts.height), fmt.Sprint(whole.height))
	t.add("largest table with its indexes, MB", grouped(float64(parts.largest)/1e6), grouped(float64(whole.largest)/1e6))
	t.add("vacuum after one record in a hundred has changed, s", seconds(parts.vacuum), seconds(whole.vacuum))
	t.add("the longest single vacuum of that, s", seconds(parts.longest), seconds(whole.longest))
	r.keep(t)
	return nil
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()) }

// selectParts lists the tables that hold the records.
const selectParts = `SELECT c.oid::regclass::text, pg_total_relation_size(c.oid),
		(SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = c.oid AND indisprimary)
	FROM pg_class c
	WHERE c.relkind = 'r' AND (c.oid = 'onceward_record'::regclass
		OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'onceward_record'::regclass))`

// changeSome writes one record in a hundred, so that a vacuum has something to do. Others each time: those that were
// written before are side by side since, and a vacuum of a few pages leaves the indexes alone.
const changeSome = `UPDATE onceward_record SET attempt = attempt WHERE state = 20 AND abs(hashtext(id::text)) % 100 = $1`

// examineForm looks at the tables that hold the records, and vacuums each after the given hundredth has changed.
func (s *pgServer) examineForm(ctx context.Context, pool *pgxpool.Pool, hundredth int) (f form, err error) {
	if err := s.exec(ctx, `CREATE EXTENSION IF NOT EXISTS pageinspect`); err != nil {
		return f, err
	}
	if _, err := pool.Exec(ctx, changeSome, hundredth); err != nil {
		return f, err
	}
	rows, err := pool.Query(ctx, selectParts)
	if err != nil {
		return f, err
	}
	defer rows.Close()
	var names, keys []string
	for rows.Next() {
		var name, key string
		var size int64
		if err := rows.Scan(&name, &size, &key); err != nil {
			return f, err
		}
		names, keys, f.largest = append(names, name), append(keys, key), max(f.largest, size)
	}
	if err := rows.Err(); err != nil {
		return f, err
	}
	for i, name := range names {
		var height int64
		if err := pool.QueryRow(ctx, `SELECT level FROM public.bt_metap($1)`, keys[i]).Scan(&height); err != nil {
			return f, err
		}
		started := time.Now()
		if _, err := pool.Exec(ctx, `VACUUM `+name); err != nil {
			return f, err
		}
		took := time.Since(started)
		f.height, f.vacuum, f.longest = max(f.height, height), f.vacuum+took, max(f.longest, took)
	}
	return f, nil
}
