package fair_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/fair"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

// shelf is a store of due records, of which there can be very many. A record is due until it is worked on.
type shelf struct {
	size int
	at   func(i int) (operation, scope string)

	mu    sync.Mutex
	rows  []row
	pages int
	fails func(page int) error
}

type row struct {
	fair.Item
	done int
}

// grow puts further records on the shelf.
func (s *shelf) grow(size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.rows); i < size; i++ {
		operation, scope := s.at(i)
		id := store.ID{Scope: scope, Key: fmt.Sprintf("%08d", i)}
		s.rows = append(s.rows, row{Item: fair.Item{ID: id, Operation: operation}})
	}
}

// index is where a record stands, by its key.
func index(id store.ID) int {
	i, err := strconv.Atoi(id.Key)
	if err != nil {
		panic(err)
	}
	return i
}

// List implements [store.Lister].
func (s *shelf) List(ctx context.Context, f store.Filter) (page []store.Record, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages++
	if s.fails != nil {
		err = s.fails(s.pages)
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}
	first := 0
	if f.After.Key != "" {
		first = index(f.After) + 1
	}
	for i := first; i < len(s.rows) && len(page) < store.MaxPage; i++ {
		if r := &s.rows[i]; r.done == 0 && (f.Scope == "" || f.Scope == r.Scope) {
			page = append(page, store.Record{ID: r.ID, Operation: r.Operation, State: f.State})
		}
	}
	return page, nil
}

// Stats implements [store.Lister].
func (s *shelf) Stats(context.Context) (store.Stats, error) { return store.Stats{}, nil }

func (s *shelf) finish(id store.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[index(id)].done++
}

func (s *shelf) finished() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.rows {
		n += min(s.rows[i].done, 1)
	}
	return n
}

// wantOnce checks that each record was worked on once.
func (s *shelf) wantOnce(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.rows {
		if n := s.rows[i].done; n != 1 {
			t.Fatalf("%v was worked on %d times, want once", s.rows[i].ID, n)
		}
	}
}

// bench is a pool over a shelf.
type bench struct {
	*testing.T
	*shelf
	pool *fair.Pool

	mu             sync.Mutex
	hung, returned []fair.Item
	errs           []error
}

func inTime(t *testing.T, s *shelf, bounds fair.Bounds, test func(b *bench)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bounds, err := bounds.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		s.grow(s.size)
		b := &bench{T: t, shelf: s}
		note := func(items *[]fair.Item) func(fair.Item) {
			return func(item fair.Item) {
				b.mu.Lock()
				defer b.mu.Unlock()
				*items = append(*items, item)
			}
		}
		b.pool = fair.NewPool(fair.Config{
			Lister: s, State: store.StateUnknown, Bounds: bounds, Overdue: time.Minute,
			Hangs: note(&b.hung), Returned: note(&b.returned),
		})
		test(b)
	})
}

// run returns a run that does something with each record, which is done then.
func (b *bench) run(ctx context.Context, do func(ctx context.Context, item fair.Item)) *fair.Run {
	return b.pool.NewRun(ctx, fair.Work{
		Wants: func(*store.Record) bool { return true },
		Do: func(ctx context.Context, item fair.Item) {
			do(ctx, item)
			b.finish(item.ID)
		},
		Failed: func(err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.errs = append(b.errs, err)
		},
	})
}

func (b *bench) look(r *fair.Run) {
	b.Helper()
	if _, err := r.Look(); err != nil {
		b.Fatal(err)
	}
}

// gauge measures how many are under way at one time.
type gauge struct {
	mu        sync.Mutex
	now, most map[string]int
}

func (g *gauge) add(name string, by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.now == nil {
		g.now, g.most = make(map[string]int), make(map[string]int)
	}
	g.now[name] += by
	g.most[name] = max(g.most[name], g.now[name])
}

// TestBounds: no more tasks are under way than the total, the operation and the scope have places, and all places are
// used.
func TestBounds(t *testing.T) {
	s := &shelf{size: 3000, at: func(i int) (string, string) {
		return fmt.Sprint("op", i%3), fmt.Sprint("scope", i/3%4)
	}}
	inTime(t, s, fair.Bounds{Total: 10, PerOperation: 4}, func(b *bench) {
		var g gauge
		r := b.run(b.Context(), func(_ context.Context, item fair.Item) {
			for _, name := range []string{"all", item.Operation, item.Operation + item.Scope} {
				g.add(name, 1)
				defer g.add(name, -1)
			}
			time.Sleep(time.Second)
		})
		began := time.Now()
		b.look(r)
		r.Wait()
		if took := time.Since(began); took > 6*time.Minute {
			b.Errorf("it took %s, want about 300 s", took)
		}
		for name, want := range map[string]int{"all": 10, "op0": 4, "op1": 4, "op2": 4, "op0scope0": 2} {
			if g.most[name] != want {
				b.Errorf("%d of %s were under way at one time, want %d", g.most[name], name, want)
			}
		}
		s.wantOnce(b.T)
	})
}

// TestOneOperationHangs: two hundred thousand due records in front delay another operation by nothing, and memory stays
// bounded.
func TestOneOperationHangs(t *testing.T) {
	const records = 200_000
	s := &shelf{size: records + 3, at: func(i int) (string, string) {
		if i >= records {
			return "quick", "scope"
		}
		return "hangs", fmt.Sprint("scope", i%1000)
	}}
	inTime(t, s, fair.Bounds{}, func(b *bench) {
		ctx, stop := context.WithCancel(b.Context())
		r := b.run(ctx, func(ctx context.Context, item fair.Item) {
			if item.Operation == "hangs" {
				<-ctx.Done()
			}
		})
		began := time.Now()
		b.look(r)
		synctest.Wait()
		if n := s.finished(); n != 3 || time.Since(began) != 0 {
			b.Errorf("%d of 3 are done after %s", n, time.Since(began))
		}
		if n := b.pool.Held(); n > 64*65+8 {
			b.Errorf("%d records are held in memory", n)
		}
		stop()
		r.Wait()
		if n := b.pool.Held(); n != 0 {
			b.Errorf("at the end %d records are held", n)
		}
	})
}

// TestOneScopeHasVeryMany: a scope with a hundred thousand records, each of which hangs, does not starve the others of
// its operation.
func TestOneScopeHasVeryMany(t *testing.T) {
	const records = 100_000
	s := &shelf{size: records + 300, at: func(i int) (string, string) {
		if i >= records {
			return "op", fmt.Sprint("honest", i%100)
		}
		return "op", "hostile"
	}}
	inTime(t, s, fair.Bounds{}, func(b *bench) {
		ctx, stop := context.WithCancel(b.Context())
		r := b.run(ctx, func(ctx context.Context, item fair.Item) {
			if item.Scope == "hostile" {
				<-ctx.Done()
			}
		})
		b.look(r)
		synctest.Wait()
		if n := s.finished(); n != 300 {
			b.Errorf("%d of 300 are done", n)
		}
		stop()
		r.Wait()
	})
}

// TestAllIsDone: what does not fit into memory is read again, however it is spread, and each record is worked on once.
func TestAllIsDone(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]func(i int) (string, string){
		"one lane":           func(int) (string, string) { return "op", "scope" },
		"a scope each":       func(i int) (string, string) { return "op", fmt.Sprint(i) },
		"many scopes":        func(i int) (string, string) { return "op", fmt.Sprint(i % 300) },
		"scopes in a row":    func(i int) (string, string) { return "op", fmt.Sprint(i / 30) },
		"many operations":    func(i int) (string, string) { return fmt.Sprint(i % 100), fmt.Sprint(i % 7) },
		"operations in rows": func(i int) (string, string) { return fmt.Sprint(i / 100), fmt.Sprint(i % 150) },
	} {
		t.Run(name, func(t *testing.T) {
			s := &shelf{size: 3000, at: at}
			inTime(t, s, fair.Bounds{}, func(b *bench) {
				r := b.run(b.Context(), func(_ context.Context, item fair.Item) {
					time.Sleep(time.Duration(item.Key[7]) * time.Millisecond)
				})
				b.look(r)
				r.Wait()
				s.wantOnce(b.T)
				if len(b.errs) != 0 || b.pool.Held() != 0 {
					b.Errorf("there were errors, %v, and %d are held at the end", b.errs, b.pool.Held())
				}
			})
		})
	}
}

// TestATurnForEach: scopes of one operation get its places in turn, however many records each has.
func TestATurnForEach(t *testing.T) {
	s := &shelf{size: 160, at: func(i int) (string, string) {
		if i < 150 {
			return "op", "many"
		}
		return "op", fmt.Sprint("few", i)
	}}
	inTime(t, s, fair.Bounds{Total: 1}, func(b *bench) {
		var order []string
		r := b.run(b.Context(), func(_ context.Context, item fair.Item) {
			order = append(order, item.Scope)
			time.Sleep(time.Second)
		})
		b.look(r)
		r.Wait()
		last := len(order) - 1
		for order[last] == "many" {
			last--
		}
		if last > 25 {
			b.Errorf("the last of the few came after %d: %s", last, order)
		}
	})
}

// TestManyScopesWithVeryManyRecords: more than half of the lanes are of scopes that have very many records. Those that
// have one, and no lane yet, do not wait for all of that.
func TestManyScopesWithVeryManyRecords(t *testing.T) {
	const large, each, small = 40, 500, 60
	s := &shelf{size: large*each + small, at: func(i int) (string, string) {
		if i < large*each {
			return "op", fmt.Sprintf("large %02d", i/each)
		}
		return "op", fmt.Sprintf("small %02d", i-large*each)
	}}
	inTime(t, s, fair.Bounds{PerOperation: 8}, func(b *bench) {
		began := time.Now()
		var last time.Duration // when the last of the small ones was worked on
		r := b.run(b.Context(), func(_ context.Context, item fair.Item) {
			time.Sleep(time.Second)
			if index(item.ID) >= large*each {
				b.mu.Lock()
				last = time.Since(began)
				b.mu.Unlock()
			}
		})
		b.look(r)
		r.Wait()
		s.wantOnce(b.T)
		if last > 1000*time.Second {
			b.Errorf("a scope with one record waited for %s", last)
		}
	})
}
