package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// pgContender is a way to do something once on PostgreSQL, or to do it without protection.
type pgContender struct {
	name string
	// open makes what the way needs in an empty schema.
	open func(ctx context.Context, s *pgSite) (*pgArena, error)
}

// pgArena is a schema with the operation to repeat in it.
type pgArena struct {
	operate func(ctx context.Context) error
	// check makes sure that the database holds what so many operations leave behind.
	check func(ctx context.Context, done int64) error
	// remark is what a reader should know about the turn; it may be nil, and so may close.
	remark func(done int64) string
	close  func() error
}

// assemble opens contenders, each in a schema of its own, and warms them up. All of them are there while any is
// measured, so that they share whatever the machine is busy with.
func (s *pgServer) assemble(
	ctx context.Context, contenders []*pgContender, callers int, length time.Duration, use func([]*pgArena) error,
) error {
	if len(contenders) == 0 {
		return use(nil)
	}
	return s.visit(ctx, callers, durably, func(site *pgSite) error {
		return s.run(ctx, contenders[0], site, func(first *pgArena) error {
			if err := warmUp(first, callers, length); err != nil {
				return err
			}
			return s.assemble(ctx, contenders[1:], callers, length, func(others []*pgArena) error {
				return use(append([]*pgArena{first}, others...))
			})
		})
	})
}

// firstCalls is what each caller does before anything is timed: enough that all connections are there, also those that
// a store opens for itself, and know their statements.
const firstCalls = 10

func warmUp(a *pgArena, callers int, length time.Duration) error {
	if _, err := repeatTimes(callers, callers*firstCalls, a.operate); err != nil {
		return err
	}
	_, err := repeat(callers, length/warmUpPart, a.operate)
	return err
}

// run opens a contender, has its operation repeated, and checks what it left behind.
func (s *pgServer) run(ctx context.Context, c *pgContender, site *pgSite, use func(a *pgArena) error) error {
	a, err := c.open(ctx, site)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	done := a.countOperations()
	if err = use(a); err == nil {
		err = a.check(ctx, done.Load())
	}
	if a.remark != nil {
		s.remarks[c.name] = a.remark(done.Load())
	}
	if a.close != nil {
		err = errors.Join(err, a.close())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// countOperations counts those that succeed from now on.
func (a *pgArena) countOperations() *atomic.Int64 {
	var done atomic.Int64
	operate := a.operate
	a.operate = func(ctx context.Context) error {
		err := operate(ctx)
		if err == nil {
			done.Add(1)
		}
		return err
	}
	return &done
}

// repeatTimes lets callers do an operation so many times in all, and returns how long they took.
func repeatTimes(callers, times int, operate func(context.Context) error) (took time.Duration, err error) {
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		once  sync.Once
		start = time.Now()
	)
	for range callers {
		wg.Go(func() {
			for next.Add(1) <= int64(times) {
				if failure := operate(context.Background()); failure != nil {
					once.Do(func() { err = failure })
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start), err
}

// pgFigure compares two ways at a number of callers. Its name may have a goal; without one it is information.
type pgFigure struct {
	name    string
	callers int
	way     string
	rival   string
}

// contest lets the two ways that a figure compares take turns. No other contender is there: the more contenders there
// are, the less each of them finds in the caches of the processors.
func (s *pgServer) contest(ctx context.Context, o *options, f pgFigure) (series, error) {
	rates, callers := make(series), f.callers
	contenders := contendersOf(f)
	err := s.assemble(ctx, contenders, callers, o.time, func(arenas []*pgArena) error {
		for range o.rounds {
			for i, arena := range arenas {
				if err := ctx.Err(); err != nil {
					return err
				}
				rate, err := repeat(callers, o.time, arena.operate)
				if err != nil {
					return fmt.Errorf("%s: %w", contenders[i].name, err)
				}
				rates.add(contenders[i].name, rate)
			}
		}
		return nil
	})
	return rates, err
}

// contendersOf are the ways that a figure compares.
func contendersOf(f pgFigure) (contenders []*pgContender) {
	for i := range pgContenders {
		if c := &pgContenders[i]; f.way == c.name || f.rival == c.name {
			contenders = append(contenders, c)
		}
	}
	return contenders
}

// compare holds the contests of the figures that are wanted, prints what they come to, and returns all rates.
func (s *pgServer) compare(ctx context.Context, o *options, r *report, figures []pgFigure) (series, error) {
	all := make(series)
	for _, f := range figures {
		if !o.wants(f.name) {
			continue
		}
		rates, err := s.contest(ctx, o, f)
		if err != nil {
			return nil, err
		}
		compareRates(r, f, rates)
		for name, values := range rates {
			all[name] = append(all[name], values...)
		}
	}
	return all, nil
}
