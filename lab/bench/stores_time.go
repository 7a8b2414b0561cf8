package main

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
	"time"
)

// processorTime is what operations take of the processors, in microseconds: on a machine that is busy with other things
// it says more than their rate.
type processorTime struct {
	stage *stage
	// here is by this process, redis by the server, of each way in each round.
	here, redis series
	// hereBefore and redisBefore are the sums when the turn began.
	hereBefore, redisBefore time.Duration
}

func (s *stage) newProcessorTime(ctx context.Context) (t *processorTime, err error) {
	t = &processorTime{stage: s, here: make(series), redis: make(series)}
	t.hereBefore, t.redisBefore, err = t.sums(ctx)
	return t, err
}

// turn ends the turn of a way, and begins the next one.
func (t *processorTime) turn(ctx context.Context, name string, done float64) error {
	here, redis, err := t.sums(ctx)
	if err != nil {
		return err
	}
	t.here.add(name, float64((here-t.hereBefore).Microseconds())/done)
	t.redis.add(name, float64((redis-t.redisBefore).Microseconds())/done)
	t.hereBefore, t.redisBefore = here, redis
	return nil
}

// sums is what this process and the server have taken since they began.
func (t *processorTime) sums(ctx context.Context) (here, redis time.Duration, err error) {
	if here, err = processorTimeHere(); err != nil {
		return 0, 0, err
	}
	info, err := t.stage.redis.Info(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info[name], 64)
		if err != nil {
			return 0, 0, fmt.Errorf("the server says %q of %s: %w", info[name], name, err)
		}
		redis += time.Duration(seconds * float64(time.Second))
	}
	return here, redis, nil
}

// processorTimeHere is what this process has taken since it began.
func processorTimeHere() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, err
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}
