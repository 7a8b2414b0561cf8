package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

func TestMain(m *testing.M) {
	// A test does not time anything.
	replayedKeys, firstReplayKeys, costOperations, costKeys, mariadbSettings = 64, 128, 20, 200, nil
	os.Exit(servers.Main(m))
}

// TestContenders does each operation a few times: what is measured must do what it says.
func TestContenders(t *testing.T) {
	for _, c := range sqliteContenders {
		t.Run(c.name, func(t *testing.T) {
			a, err := c.open(context.Background(), filepath.Join(t.TempDir(), "bench.db"))
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := a.operate(context.Background()); err != nil {
					t.Error(err)
				}
			}
			if err := a.close(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, c := range httpContenders {
		t.Run(c.name, func(t *testing.T) {
			call, check, err := c.open()
			if err != nil {
				t.Fatal(err)
			}
			key := newKey()
			call(key)
			if c.replays {
				call(key)
			}
			if err := check(c.replays); err != nil {
				t.Error(err)
			}
		})
	}
}

// testServer starts a server for the tests of what is measured on it.
func testServer(t *testing.T) *pgServer {
	t.Helper()
	s, err := openServer(context.Background(), &options{})
	if err != nil {
		t.Fatal(err)
	}
	s.rows = 100 // a test does not time anything
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestPostgresContenders does each operation a few times: what is measured must do what it says, and leave what it
// says.
func TestPostgresContenders(t *testing.T) {
	nightly.Only(t, "it tries what make bench measures on a server")
	s, ctx := testServer(t), context.Background()
	const callers, times = 4, 20
	for i := range pgContenders {
		c := &pgContenders[i]
		t.Run(c.name, func(t *testing.T) {
			err := s.visit(ctx, callers, durably, func(site *pgSite) error {
				return s.run(ctx, c, site, func(a *arena) error {
					_, err := repeatTimes(callers, times, a.operate)
					return err
				})
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			size, err := s.sizeOf(ctx, &l, 500)
			if err != nil || size.table < 200 || size.indexes < 20 {
				t.Errorf("a key takes %+v, %v", size, err)
			}
		})
	}
}

// TestStoresContenders does the same on the servers of the suite stores.
func TestStoresContenders(t *testing.T) {
	nightly.Only(t, "it tries what make bench measures on a server")
	pg, ctx := testServer(t), context.Background()
	const callers, times = 4, 20
	s, err := openStage(ctx, &storesContest{redis: always, callers: callers},
		func(context.Context) (*pgServer, error) { return pg, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	for i := range storesWays {
		w := &storesWays[i]
		t.Run(w.name, func(t *testing.T) {
			err := s.opener(w).run(ctx, func(a *arena) error {
				_, err := repeatTimes(callers, times, a.operate)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEnginesContenders does the same on the servers of the suite engines.
func TestEnginesContenders(t *testing.T) {
	nightly.Only(t, "it tries what make bench measures on a server")
	const callers, times = 4, 20
	e, ctx := &engines{callers: callers, rows: 100}, context.Background()
	t.Cleanup(func() {
		if err := e.close(); err != nil {
			t.Error(err)
		}
	})
	for _, w := range enginesWays {
		t.Run(w.name, func(t *testing.T) {
			err := e.openers([]string{w.name})[0].run(ctx, func(a *arena) error {
				_, err := repeatTimes(callers, times, a.operate)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	first, replay, err := e.countRequests(ctx)
	if err != nil || first > 2 || replay > 1 {
		t.Errorf("a first execution takes %v requests and a replay %v, %v", first, replay, err)
	}
}

// TestCosts counts what an operation costs on MariaDB: the relay must see its round trips, and the server its log.
func TestCosts(t *testing.T) {
	for _, c := range costStores {
		if !strings.HasPrefix(c.name, "MariaDB") {
			continue
		}
		operations, sizes := new(table), new(table)
		if err := c.measure(context.Background(), &options{}, operations, sizes); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		for i, row := range operations.rows {
			if trips, err := strconv.ParseFloat(row[2], 64); err != nil || trips < 1 || trips > 4 {
				t.Errorf("%s", row)
			}
			if wrote := row[len(row)-1]; !costKinds[i].again && len(wrote) < len("100") {
				t.Errorf("an operation that writes left no log: %s", row)
			}
		}
	}
}

// TestScaleSteps does each operation of the scale suite a few times, beside records that were cloned.
func TestScaleSteps(t *testing.T) {
	nightly.Only(t, "it tries what make bench measures on a server")
	s, ctx := testServer(t), context.Background()
	err := s.visit(ctx, 4, durably, func(site *pgSite) error {
		store, err := openStore(ctx, site)
		if err != nil {
			return err
		}
		side := &scaleSide{records: 3000, site: site, store: store, keys: newKeys(100)}
		if err := side.fill(ctx); err != nil {
			return err
		}
		for i := range scaleSteps {
			step := scaleSteps[i]
			step.times = 4
			if err := scaleTurn(ctx, &step, side, make(series)); err != nil {
				t.Errorf("%s: %v", step.name, err)
			}
		}
		return store.Close()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestDistantly holds what is measured over a network to its terms: a reply is late, and a commit takes longer, also on
// the store's own connections.
func TestDistantly(t *testing.T) {
	nightly.Only(t, "it tries what make bench measures on a server")
	s, ctx := testServer(t), context.Background()
	const commit = time.Millisecond
	err := s.visit(ctx, 1, distantly, func(site *pgSite) error {
		st, err := openStore(ctx, site)
		if err != nil {
			return err
		}
		for name, test := range map[string]struct {
			operate func(context.Context) error
			least   time.Duration
		}{
			"a look-up": {func(ctx context.Context) error {
				_, err := site.count(ctx, `SELECT 1`)
				return err
			}, distantly.delay},
			"a transaction": {func(ctx context.Context) error {
				return transactOnce(ctx, st, reservation(newKey()), completion(), noWork, store.DecisionExecute)
			}, 2*distantly.delay + commit},
			"a reservation": {(&scaleSide{site: site, store: st}).reserve, distantly.delay + commit},
		} {
			for range 3 {
				if took, err := repeatTimes(1, 1, test.operate); err != nil || took < test.least {
					t.Errorf("%s took %s, %v; want %s at least", name, took, err, test.least)
				}
			}
		}
		return st.Close()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestBloat lets a short day pass: all records but those of its last fifth must be reaped.
func TestBloat(t *testing.T) {
	nightly.Only(t, "it tries what make bench measures on a server")
	s, ctx := testServer(t), context.Background()
	d := day{inserts: 1000, steps: 10, pace: time.Millisecond, life: 24 * time.Hour / 5}
	err := s.visit(ctx, 1, lazily, func(used *pgSite) error {
		reaped, err := d.pass(ctx, used)
		if err != nil || reaped < 700 || reaped > 800 {
			t.Errorf("%d of 1000 records were reaped, %v", reaped, err)
		}
		return s.visit(ctx, 1, lazily, func(fresh *pgSite) error {
			kept, err := fillFrom(ctx, fresh, used)
			if want := int64(1001 - reaped); kept != want {
				t.Errorf("%d records were left, want %d", kept, want)
			}
			size, sizeErr := fresh.recordSize(ctx)
			if size.table == 0 || size.indexes == 0 {
				t.Errorf("they take %+v", size)
			}
			return errors.Join(err, sizeErr)
		})
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLog counts the log of both kinds of keys: what is reserved must be written.
func TestLog(t *testing.T) {
	nightly.Only(t, "it tries what make bench measures on a server")
	s, ctx := testServer(t), context.Background()
	err := s.visit(ctx, 4, durably, func(site *pgSite) error {
		store, err := openStore(ctx, site)
		if err != nil {
			return err
		}
		side := &scaleSide{site: site, store: store}
		for _, l := range scaleLogs {
			n, err := s.countLog(ctx, 4, 100, side.reserveKeys(l.key))
			if err != nil || n < 200 || n > 20_000 {
				t.Errorf("%s: a reservation wrote %.0f bytes of log, %v", l.name, n, err)
			}
		}
		return store.Close()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestOrderedKeys checks that a later key sorts after an earlier one, and is a UUID of version 7.
func TestOrderedKeys(t *testing.T) {
	first := newOrderedKey()
	time.Sleep(2 * time.Millisecond)
	second := newOrderedKey()
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	if first >= second || !form.MatchString(first) {
		t.Errorf("%s, %s", first, second)
	}
}

// checkComparisons makes sure that each figure compares two ways that take turns.
func checkComparisons(t *testing.T, ways []string, figures []comparison) {
	t.Helper()
	for _, f := range figures {
		if !slices.Contains(ways, f.way) || !slices.Contains(ways, f.rival) {
			t.Errorf("%s compares %q with %q, which do not take turns", f.name, f.way, f.rival)
		}
		if _, ok := goals[f.like]; f.like != "" && !ok {
			t.Errorf("%s is compared with the goal of %q, which has none", f.name, f.like)
		}
	}
}

// TestStoresFigures keeps the names of ways, contests and figures together: each figure compares two ways that take
// turns.
func TestStoresFigures(t *testing.T) {
	ways, used := make(map[string]bool), make(map[string]bool)
	for _, w := range storesWays {
		if ways[w.name] {
			t.Errorf("there are two ways %q", w.name)
		}
		ways[w.name] = true
	}
	for _, c := range storesContests {
		for _, name := range c.ways {
			used[name] = true
			if !ways[name] {
				t.Errorf("there is no way %q", name)
			}
		}
		checkComparisons(t, c.ways, c.figures)
	}
	for name := range ways {
		if !used[name] {
			t.Errorf("%q takes no turn", name)
		}
	}
}

// TestEnginesFigures does the same for the suite engines.
func TestEnginesFigures(t *testing.T) {
	used := make(map[string]bool)
	for _, c := range enginesContests {
		for _, name := range c.ways {
			used[name] = true
		}
		checkComparisons(t, c.ways, c.figures)
	}
	for _, w := range enginesWays {
		if !used[w.name] {
			t.Errorf("%q takes no turn", w.name)
		}
		delete(used, w.name)
	}
	for name := range used {
		t.Errorf("there is no way %q", name)
	}
}

// TestFigures keeps the names of ways, figures and goals together.
func TestFigures(t *testing.T) {
	ways := make(map[string]bool)
	for _, c := range pgContenders {
		if ways[c.name] {
			t.Errorf("there are two ways %q", c.name)
		}
		ways[c.name] = true
	}
	for _, c := range slices.Concat(pgContests, networkContests, outboxContests, telemetryContests) {
		for _, name := range c.ways {
			if !ways[name] {
				t.Errorf("there is no way %q", name)
			}
		}
		checkComparisons(t, c.ways, c.figures)
	}
	for _, step := range scaleSteps {
		if _, ok := goals[step.name]; !ok {
			t.Errorf("%s has no goal", step.name)
		}
	}
}
