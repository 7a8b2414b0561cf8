package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// The numbers of records that operators' commands are compared on.
const (
	fewRecords         = 1_000
	defaultManyRecords = 1_000_000
	// openRecords is how many of them are unknown, and deadRecords how many of those wait for a person.
	openRecords = 20
	deadRecords = 5
	// commandRuns is how often each command runs in a round: a process is started in milliseconds, and no two starts are
	// alike.
	commandRuns = 5
	// warmRuns is how often each runs before that counts.
	warmRuns = 2
)

// operateCommand is a command that is to take as long on a large store as on a small one.
type operateCommand struct {
	figure string
	title  string
	args   func(*operateSide) []string
	// scans says that Redis has no index for it, and goes through all keys.
	scans bool
}

var operateCommands = []operateCommand{
	{"cli-show-1m", "keys show HASH", func(s *operateSide) []string {
		return []string{"keys", "show", s.shown.Hash()}
	}, false},
	{"cli-show-1m", "keys show KEY", func(s *operateSide) []string {
		return []string{"keys", "show", s.shown.Key, "--scope", s.shown.Scope}
	}, false},
	{"cli-show-1m", "keys show PROVIDER_ID", func(s *operateSide) []string {
		return []string{"keys", "show", providerID(s.shown.Key)}
	}, false},
	{"cli-list-1m", "keys list", func(*operateSide) []string { return []string{"keys", "list"} }, true},
	{"cli-list-1m", "unknown list", func(*operateSide) []string { return []string{"unknown", "list"} }, false},
	{"cli-list-1m", "dead list", func(*operateSide) []string { return []string{"dead", "list"} }, false},
}

// operateSide is a store with some number of records.
type operateSide struct {
	url     string
	records int
	// shown is one of them.
	shown store.ID
}

// name is the head of its column.
func (s *operateSide) name() string { return grouped(float64(s.records)) + " records" }

// providerID is what the provider calls the effect of a key.
func providerID(key string) string { return "ch_" + key }

// measureOperate compares what operators' commands take on a store of many records with one of few, with the program as
// it is built for them.
func measureOperate(ctx context.Context, o *options, r *report) error {
	many := o.keys
	if many == 0 {
		many = defaultManyRecords
	}
	if many <= fewRecords {
		return fmt.Errorf("bench: -keys must be more than the %d that it is compared with", fewRecords)
	}
	dir, err := os.MkdirTemp(o.dir, "onceward-operate-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "onceward")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/onceward/onceward/cmd/onceward")
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("bench: build the program: %w: %s", err, said)
	}
	c := &operateContest{program: program, dir: dir, many: many, worst: make(map[string]float64), table: &table{
		title: "Milliseconds a command",
		head: []string{
			"store and command", grouped(fewRecords) + " records", grouped(float64(many)) + " records", "ratio",
		},
	}}
	for _, on := range []func(context.Context, *options, *report) error{c.onSQLite, c.onPostgres, c.onRedis} {
		if err := on(ctx, o, r); err != nil {
			return err
		}
	}
	r.keep(c.table)
	for _, figure := range []string{"cli-show-1m", "cli-list-1m"} {
		r.judge(figure, c.worst[figure])
	}
	return nil
}

// operateContest gathers what commands take on all stores. A figure is the worst of its ratios.
type operateContest struct {
	program, dir string
	many         int
	worst        map[string]float64
	table        *table
}

func (c *operateContest) onSQLite(ctx context.Context, o *options, r *report) error {
	return c.compare(ctx, o, r, "SQLite", func(records int) (*operateSide, error) {
		path := filepath.Join(c.dir, fmt.Sprintf("store-%d.db", records))
		side := &operateSide{url: "sqlite:" + path, records: records}
		return side, side.fill(ctx, func(template *store.ID, n int) (store.ID, error) {
			return cloneInSQLite(ctx, path, template, n)
		})
	})
}

func (c *operateContest) onPostgres(ctx context.Context, o *options, r *report) (err error) {
	s, err := openServer(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r.note("%s", s.about)
	return s.visit(ctx, 1, lazily, func(few *pgSite) error {
		return s.visit(ctx, 1, lazily, func(many *pgSite) error {
			return c.compare(ctx, o, r, "PostgreSQL", func(records int) (*operateSide, error) {
				site := few
				if records != fewRecords {
					site = many
				}
				address, err := s.urlOf(site)
				if err != nil {
					return nil, err
				}
				side := &operateSide{url: address, records: records}
				return side, side.fill(ctx, func(template *store.ID, n int) (store.ID, error) {
					return cloneInPostgres(ctx, site, template, n)
				})
			})
		})
	})
}

// urlOf is the URL by which another program works in the schema of a site.
func (s *pgServer) urlOf(site *pgSite) (string, error) {
	address, err := url.Parse(s.url)
	if err != nil {
		return "", err
	}
	query := address.Query()
	query.Set("search_path", site.schema)
	address.RawQuery = query.Encode()
	return address.String(), nil
}

func (c *operateContest) onRedis(ctx context.Context, o *options, r *report) (err error) {
	server, err := servers.StartRedis(ctx, "appendonly no")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	return c.compare(ctx, o, r, "Redis", func(records int) (*operateSide, error) {
		side := &operateSide{url: fmt.Sprintf("%s?prefix=of-%d", server.URL(), records), records: records}
		return side, side.fill(ctx, func(_ *store.ID, n int) (store.ID, error) { return writeInRedis(ctx, side.url, n) })
	})
}

// compare fills two stores of a kind, and lets commands run on both in turns.
func (c *operateContest) compare(
	ctx context.Context, o *options, r *report, kind string, open func(records int) (*operateSide, error),
) error {
	sides := make([]*operateSide, 2)
	for i, records := range []int{fewRecords, c.many} {
		started := time.Now()
		side, err := open(records)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		r.note("%s: %s in place after %s", kind, side.name(), time.Since(started).Round(time.Second))
		sides[i] = side
	}
	few, many := sides[0], sides[1]
	for i := range operateCommands {
		command := &operateCommands[i]
		if !o.wants(command.figure) || command.scans && kind == "Redis" {
			continue
		}
		millis := make(series)
		for i := range warmRuns + o.rounds*commandRuns {
			for _, side := range sides {
				took, err := c.run(ctx, command, side)
				if err != nil {
					return fmt.Errorf("%s: %w", kind, err)
				}
				if i >= warmRuns {
					millis.add(side.name(), float64(took.Microseconds())/1e3)
				}
			}
		}
		ratio := millis.median(many.name()) / millis.median(few.name())
		c.worst[command.figure] = max(c.worst[command.figure], ratio)
		c.table.add(kind+": "+command.title, fmt.Sprintf("%.0f", millis.median(few.name())),
			fmt.Sprintf("%.0f", millis.median(many.name())), fmt.Sprintf("%.2f", ratio))
	}
	return nil
}

// run times a command, from its start to its end.
func (c *operateContest) run(ctx context.Context, command *operateCommand, side *operateSide) (time.Duration, error) {
	var out, said bytes.Buffer
	process := exec.CommandContext(ctx, c.program, command.args(side)...)
	process.Env = append(os.Environ(), "ONCEWARD_STORE="+side.url)
	process.Stdout, process.Stderr = &out, &said
	started := time.Now()
	err := process.Run()
	took := time.Since(started)
	if err == nil && out.Len() < len("HASH") {
		err = fmt.Errorf("it said %q", out.String())
	}
	if err != nil {
		return 0, fmt.Errorf("onceward %s: %w: %s", command.title, err, said.String())
	}
	return took, nil
}

// fill writes what is open through the store, and one completed record, which clone then copies.
func (s *operateSide) fill(ctx context.Context, clone func(template *store.ID, n int) (store.ID, error)) error {
	opened, err := storeurl.OpenStore(ctx, s.url)
	if err != nil {
		return err
	}
	template := store.ID{Scope: "alice", Key: newKey()}
	err = errors.Join(writeOpen(ctx, opened), writeCompleted(ctx, opened, template.Key), opened.Close())
	if err != nil {
		return err
	}
	if s.shown, err = clone(&template, s.records-openRecords-1); err != nil {
		return err
	}
	return s.check(ctx)
}

// check reads a copy back, and counts.
func (s *operateSide) check(ctx context.Context) error {
	opened, err := storeurl.OpenStore(ctx, s.url)
	if err != nil {
		return err
	}
	defer opened.Close()
	rec, err := opened.Get(ctx, s.shown)
	if err != nil {
		return fmt.Errorf("a copy cannot be read: %w", err)
	}
	same := rec.ProviderID == providerID(s.shown.Key) && string(rec.Response.Body) == answer
	if !same || rec.State != store.StateCompleted {
		return fmt.Errorf("a copy is not what the store would have written: %+v", rec)
	}
	lister, _ := store.As[store.Lister](opened)
	stats, err := lister.Stats(ctx)
	if err != nil {
		return err
	}
	got, want := stats.Records[store.StateCompleted], int64(s.records-openRecords)
	if got != want || stats.DeadLetters != deadRecords {
		return fmt.Errorf("there are %d completed records and %d dead letters, want %d and %d", got, stats.DeadLetters,
			want, deadRecords)
	}
	return nil
}

// writeCompleted writes a completed record as a service does.
func writeCompleted(ctx context.Context, s store.Store, key string) error {
	r, done := reservation(key), completion()
	done.ProviderID = providerID(key)
	v, err := s.Reserve(ctx, r)
	if err := decided(v, err, store.DecisionExecute); err != nil {
		return err
	}
	_, err = s.Complete(ctx, store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, &done)
	return err
}

// writeOpen writes the records that are unknown, and makes some of them dead letters.
func writeOpen(ctx context.Context, s store.Store) error {
	reconciler, _ := store.As[store.Reconciler](s)
	for i := range openRecords {
		r := reservation(newKey())
		v, err := s.Reserve(ctx, r)
		if err := decided(v, err, store.DecisionExecute); err != nil {
			return err
		}
		claim := store.Claim{ID: r.ID, Attempt: v.Record.Attempt}
		if err := s.Abandon(ctx, claim, "the bank hung up"); err != nil {
			return err
		}
		if i >= deadRecords {
			continue
		}
		err = errors.Join(reconciler.BeginReconcile(ctx, claim, 0, time.Minute),
			reconciler.Postpone(ctx, claim, store.Postponement{Count: 1, MaxAttempts: 1, Reason: "the bank is down"}))
		if err != nil {
			return err
		}
	}
	return nil
}
