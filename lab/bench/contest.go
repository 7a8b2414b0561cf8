package main

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// sqliteContender is a way to do something once on SQLite, or to do it without protection.
type sqliteContender struct {
	name string
	// open makes a fresh database in the file.
	open func(ctx context.Context, file string) (*arena, error)
}

// arena is an open database with the operation to repeat in it.
type arena struct {
	operate func(ctx context.Context) error
	close   func() error
}

// warmUpPart is the part of a turn that runs once more before the measurement starts.
const warmUpPart = 4

func (c *sqliteContender) turn(ctx context.Context, file string, callers int, length time.Duration) (rate float64, err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(filepath.Dir(file)) }()
	a, err := c.open(ctx, file)
	if err != nil {
		return 0, err
	}
	if _, err = repeat(callers, length/warmUpPart, a.operate); err == nil {
		rate, err = repeat(callers, length, a.operate)
	}
	if closeErr := a.close(); err == nil {
		err = closeErr
	}
	return rate, err
}

// repeat lets callers do an operation for some time, and returns how many were done in a second. None of them can be
// cancelled: a context that all share would be a lock that no server has.
func repeat(callers int, length time.Duration, operate func(context.Context) error) (rate float64, err error) {
	var (
		done  atomic.Int64
		wg    sync.WaitGroup
		once  sync.Once
		start = time.Now()
		over  = start.Add(length)
	)
	for range callers {
		wg.Go(func() {
			for time.Now().Before(over) {
				if failure := operate(context.Background()); failure != nil {
					once.Do(func() { err = failure })
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(start).Seconds(), err
}

// syncTime is what a durable write costs here: close to nothing means that the figures say little about a real disk.
func syncTime(dir string) (time.Duration, error) {
	file, err := os.CreateTemp(dir, "sync")
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	page := make([]byte, 4096)
	var times []float64
	for range 50 {
		started := time.Now()
		if _, err := file.WriteAt(page, 0); err != nil {
			return 0, err
		}
		if err := file.Sync(); err != nil {
			return 0, err
		}
		times = append(times, float64(time.Since(started)))
	}
	return time.Duration(median(times)), nil
}
