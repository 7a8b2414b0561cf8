package fair_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/internal/fair"
	"github.com/onceward/onceward/store"
)

// TestATaskThatNeverReturns is reported, keeps its place in its operation but not in the total, and no run waits for
// it.
func TestATaskThatNeverReturns(t *testing.T) {
	s := &shelf{size: 100, at: func(i int) (string, string) {
		if i < 50 {
			return "stuck", fmt.Sprint(i % 2)
		}
		return "sound", "scope"
	}}
	inTime(t, s, fair.Bounds{Total: 4, PerOperation: 4}, func(b *bench) {
		letGo := make(chan struct{})
		r := b.run(b.Context(), func(_ context.Context, item fair.Item) {
			if item.Operation == "stuck" {
				<-letGo
			}
		})
		began := time.Now()
		b.look(r)
		r.Wait()
		if took := time.Since(began); took != time.Minute || s.finished() != 50 {
			b.Errorf("after %s %d are done, want the 50 that are sound when the others are overdue", took, s.finished())
		}
		if len(b.hung) != 4 || b.pool.Hanging() != 4 || b.hung[0].Operation != "stuck" || b.pool.Held() != 4 {
			b.Errorf("told of %v, %d hang, and %d are held", b.hung, b.pool.Hanging(), b.pool.Held())
		}
		b.look(r) // all places of the operation are taken: nothing of it is begun, and nothing waits
		r.Wait()
		if took := time.Since(began); took != time.Minute || len(b.hung) != 4 {
			b.Errorf("the second look took until %s, and %d hang", took, len(b.hung))
		}

		close(letGo)
		synctest.Wait()
		if len(b.returned) != 4 || b.pool.Hanging() != 0 || b.pool.Held() != 0 || b.pool.Shares() != 0 {
			b.Errorf("%d have returned, %d hang, %d are held, with %d shares",
				len(b.returned), b.pool.Hanging(), b.pool.Held(), b.pool.Shares())
		}
		b.look(r)
		r.Wait()
		s.wantOnce(b.T)
	})
}

// TestAPlaceComesBack: one of the hanging tasks returns, and the operation continues in its place.
func TestAPlaceComesBack(t *testing.T) {
	s := &shelf{size: 10, at: func(int) (string, string) { return "op", "scope" }}
	inTime(t, s, fair.Bounds{Total: 4, PerOperation: 4}, func(b *bench) {
		letGo := map[string]chan struct{}{"00000000": make(chan struct{}), "00000001": make(chan struct{})}
		r := b.run(b.Context(), func(_ context.Context, item fair.Item) {
			if stuck := letGo[item.Key]; stuck != nil {
				<-stuck
			}
		})
		b.look(r)
		r.Wait()
		close(letGo["00000001"])
		synctest.Wait()
		b.look(r)
		r.Wait()
		if n := s.finished(); n != 9 || b.pool.Hanging() != 1 {
			b.Errorf("%d are done, and %d hang", n, b.pool.Hanging())
		}
		close(letGo["00000000"])
		synctest.Wait()
		s.wantOnce(b.T)
	})
}

// TestALookWhileOthersAreBusy: a run that looks again begins what is new, and nothing twice.
func TestALookWhileOthersAreBusy(t *testing.T) {
	s := &shelf{size: 900, at: func(i int) (string, string) {
		if i < 900 {
			return "slow", "scope"
		}
		return "late", "scope"
	}}
	inTime(t, s, fair.Bounds{}, func(b *bench) {
		r := b.run(b.Context(), func(_ context.Context, item fair.Item) {
			if item.Operation == "slow" {
				time.Sleep(30 * time.Second)
			}
		})
		b.look(r)
		for range 3 {
			time.Sleep(10 * time.Second)
			b.look(r)
		}
		s.grow(1000)
		before := s.finished()
		b.look(r)
		synctest.Wait()
		if n := s.finished() - before; n < 100 {
			b.Errorf("%d of 100 new ones are done at once", n)
		}
		r.Wait()
		s.wantOnce(b.T)
	})
}

// TestTwoRuns of one pool share its places, and none works on what the other has in hand.
func TestTwoRuns(t *testing.T) {
	s := &shelf{size: 500, at: func(i int) (string, string) { return "op", fmt.Sprint(i % 100) }}
	inTime(t, s, fair.Bounds{}, func(b *bench) {
		var g gauge
		do := func(context.Context, fair.Item) {
			g.add("all", 1)
			defer g.add("all", -1)
			time.Sleep(time.Second)
		}
		one, other := b.run(b.Context(), do), b.run(b.Context(), do)
		b.look(one)
		b.look(other)
		one.Wait()
		other.Wait()
		s.wantOnce(b.T)
		if g.most["all"] != 8 {
			b.Errorf("%d were under way at one time", g.most["all"])
		}
	})
}

// TestTheEnd: with the context, waiting records are dropped, and running tasks see its end.
func TestTheEnd(t *testing.T) {
	s := &shelf{size: 5000, at: func(i int) (string, string) { return fmt.Sprint("op", i%2), fmt.Sprint(i % 200) }}
	inTime(t, s, fair.Bounds{Total: 6}, func(b *bench) {
		ctx, stop := context.WithCancel(b.Context())
		r := b.run(ctx, func(ctx context.Context, _ fair.Item) { <-ctx.Done() })
		b.look(r)
		synctest.Wait()
		stop()
		r.Wait()
		if n := s.finished(); n != 6 || b.pool.Held() != 0 || b.pool.Shares() != 0 {
			b.Errorf("%d were begun; %d are held, with %d shares", n, b.pool.Held(), b.pool.Shares())
		}
		if _, err := r.Look(); !errors.Is(err, context.Canceled) {
			b.Errorf("a look after the end: %v", err)
		}
	})
}

// TestTheStoreFails in the middle: found records are processed, the failure is reported, and the next look finds the
// rest.
func TestTheStoreFails(t *testing.T) {
	t.Parallel()
	errDown := fmt.Errorf("%w: the test pulled the plug", store.ErrUnavailable)
	for name, scopes := range map[string]int{"one lane": 1, "many": 1000} {
		t.Run(name, func(t *testing.T) {
			s := &shelf{size: 3000, at: func(i int) (string, string) { return "op", fmt.Sprint(i % scopes) }}
			inTime(t, s, fair.Bounds{}, func(b *bench) {
				s.fails = func(page int) error {
					if page == 6 {
						return errDown
					}
					return nil
				}
				r := b.run(b.Context(), func(context.Context, fair.Item) { time.Sleep(time.Second) })
				b.look(r)
				r.Wait()
				if len(b.errs) != 1 || !errors.Is(b.errs[0], errDown) || s.finished() == 0 || s.finished() == 3000 {
					b.Errorf("told of %v, and %d are done", b.errs, s.finished())
				}
				b.look(r)
				r.Wait()
				s.wantOnce(b.T)
			})
		})
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ given, want fair.Bounds }{
		{fair.Bounds{}, fair.Bounds{Total: 64, PerOperation: 8}},
		{fair.Bounds{Total: 1}, fair.Bounds{Total: 1, PerOperation: 1}},
		{fair.Bounds{Total: 5}, fair.Bounds{Total: 5, PerOperation: 3}},
		{fair.Bounds{PerOperation: 100}, fair.Bounds{Total: 100, PerOperation: 100}},
		{fair.Bounds{Total: 3, PerOperation: 9}, fair.Bounds{Total: 3, PerOperation: 3}},
	} {
		if got, err := c.given.WithDefaults(); err != nil || got != c.want {
			t.Errorf("%+v became %+v, %v, want %+v", c.given, got, err, c.want)
		}
	}
	for _, b := range []fair.Bounds{{Total: -1}, {PerOperation: -1}} {
		if _, err := b.WithDefaults(); err == nil {
			t.Errorf("%+v was accepted", b)
		}
	}
}

// silent is a store whose machine vanishes without a word: the first page gets no answer.
type silent struct {
	*shelf
	asked atomic.Int64
}

func (s *silent) List(ctx context.Context, f store.Filter) ([]store.Record, error) {
	if s.asked.Add(1) == 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.shelf.List(ctx, f)
}

// TestNoAnswerDoesNotStopARun: a page that the store does not answer with is given up, and the next look finds all.
func TestNoAnswerDoesNotStopARun(t *testing.T) {
	s := &shelf{size: 10, at: func(int) (string, string) { return "op", "scope" }}
	inTime(t, s, fair.Bounds{}, func(b *bench) {
		pool := fair.NewPool(fair.Config{
			Lister: &silent{shelf: s}, State: store.StateUnknown, Overdue: time.Minute,
			Bounds: fair.Bounds{Total: 4, PerOperation: 4}, Hangs: func(fair.Item) {}, Returned: func(fair.Item) {},
		})
		r := pool.NewRun(b.Context(), fair.Work{
			Wants: func(*store.Record) bool { return true },
			Do:    func(_ context.Context, item fair.Item) { s.finish(item.ID) },
		})
		if _, err := r.Look(); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("a look at a store that does not answer returns %v", err)
		}
		b.look(r)
		r.Wait()
		s.wantOnce(b.T)
	})
}

// TestATaskThatPanics fails, and the others are done.
func TestATaskThatPanics(t *testing.T) {
	s := &shelf{size: 10, at: func(int) (string, string) { return "op", "scope" }}
	inTime(t, s, fair.Bounds{}, func(b *bench) {
		var begun atomic.Int64
		r := b.run(b.Context(), func(context.Context, fair.Item) {
			if begun.Add(1) == 1 {
				panic("a bug")
			}
		})
		b.look(r)
		r.Wait()
		if len(b.errs) != 1 || s.finished() != 9 || b.pool.Held() != 0 || b.pool.Shares() != 0 {
			b.Errorf("%v; %d are done, %d are held, with %d shares", b.errs, s.finished(), b.pool.Held(), b.pool.Shares())
		}
		b.look(r)
		r.Wait()
		s.wantOnce(b.T)
	})
}
