package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// processorTime is what operations take of the processors, in microseconds: on a machine that is busy with other things
// it says more than their rate.
type processorTime struct {
	// serverTime is what the server has taken since it began.
	serverTime func(context.Context) (time.Duration, error)
	// here is by this process, server by the server, of each way in each round.
	here, server series
	// hereBefore and serverBefore are the sums when the turn began.
	hereBefore, serverBefore time.Duration
}

func newProcessorTime(
	ctx context.Context, serverTime func(context.Context) (time.Duration, error),
) (t *processorTime, err error) {
	t = &processorTime{serverTime: serverTime, here: make(series), server: make(series)}
	t.hereBefore, t.serverBefore, err = t.sums(ctx)
	return t, err
}

// turn ends the turn of a way, and begins the next one.
func (t *processorTime) turn(ctx context.Context, name string, done float64) error {
	here, server, err := t.sums(ctx)
	if err != nil {
		return err
	}
	t.here.add(name, float64((here-t.hereBefore).Microseconds())/done)
	t.server.add(name, float64((server-t.serverBefore).Microseconds())/done)
	t.hereBefore, t.serverBefore = here, server
	return nil
}

// sums is what this process and the server have taken since they began.
func (t *processorTime) sums(ctx context.Context) (here, server time.Duration, err error) {
	if here, err = processorTimeHere(); err != nil {
		return 0, 0, err
	}
	server, err = t.serverTime(ctx)
	return here, server, err
}

// redisTime is what the Redis of a stage says that it has taken.
func (s *stage) redisTime(ctx context.Context) (sum time.Duration, err error) {
	info, err := s.redis.Info(ctx)
	if err != nil {
		return 0, err
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info[name], 64)
		if err != nil {
			return 0, fmt.Errorf("the server says %q of %s: %w", info[name], name, err)
		}
		sum += time.Duration(seconds * float64(time.Second))
	}
	return sum, nil
}

// processTime is what a process has taken, where the system tells by a file; zero elsewhere.
func processTime(pid int) (time.Duration, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	// The name of the program is in parentheses and may hold anything. After it the times are the 12th and the 13th.
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// ticksPerSecond is the unit of those times, which is the same on all of Linux.
const ticksPerSecond = 100

// processorTimeHere is what this process has taken since it began.
func processorTimeHere() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, err
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}
