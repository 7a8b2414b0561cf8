package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// arena is where a contender takes its turns: an open database, or a place of its own in one, with the operation to
// repeat in it.
type arena struct {
	operate func(ctx context.Context) error
	// check makes sure that the database holds what so many operations leave behind. It may be nil.
	check func(ctx context.Context, done int64) error
	// remark is what a reader should know about the turn; it may be nil, and so may close.
	remark func(done int64) string
	close  func() error
}

// use has the operation repeated, checks what it left behind, closes the arena, and returns how often it succeeded.
func (a *arena) use(ctx context.Context, use func(*arena) error) (int64, error) {
	done := a.countOperations()
	err := use(a)
	if err == nil && a.check != nil {
		err = a.check(ctx, done.Load())
	}
	if a.close != nil {
		err = errors.Join(err, a.close())
	}
	return done.Load(), err
}

// countOperations counts those that succeed from now on.
func (a *arena) countOperations() *atomic.Int64 {
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

// opener is a contender by its name, with how it opens its arena.
type opener struct {
	name string
	open func(context.Context) (*arena, error)
}

// run opens the contender, has its operation repeated, and checks what it left behind.
func (p opener) run(ctx context.Context, use func(*arena) error) error {
	a, err := p.open(ctx)
	if err == nil {
		_, err = a.use(ctx, use)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// assemble opens contenders and warms them up. All of them are there while any is measured, so that they share whatever
// the machine is busy with.
func assemble(
	ctx context.Context, openers []opener, callers int, length time.Duration, use func([]*arena) error,
) error {
	if len(openers) == 0 {
		return use(nil)
	}
	return openers[0].run(ctx, func(first *arena) error {
		if err := warmUp(first, callers, length); err != nil {
			return err
		}
		return assemble(ctx, openers[1:], callers, length, func(others []*arena) error {
			return use(append([]*arena{first}, others...))
		})
	})
}

// firstCalls is what each caller does before anything is timed: enough that all connections are there, also those that
// a store opens for itself, and know their statements.
const firstCalls = 10

func warmUp(a *arena, callers int, length time.Duration) error {
	if _, err := repeatTimes(callers, callers*firstCalls, a.operate); err != nil {
		return err
	}
	_, err := repeat(callers, length/warmUpPart, a.operate)
	return err
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
