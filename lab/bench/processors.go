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

	"github.com/onceward/onceward/internal/proc"
)

// processorTime is what was taken of the processors, by this process and by the server, since they began.
type processorTime struct{ here, server time.Duration }

// measureProcessors asks for both; the server's may be nil.
func measureProcessors(
	ctx context.Context, serverTime func(context.Context) (time.Duration, error),
) (t processorTime, err error) {
	if serverTime != nil {
		if t.server, err = serverTime(ctx); err != nil {
			return t, err
		}
	}
	t.here, err = processorTimeHere()
	return t, err
}

// processorTimeHere is what this process has taken since it began.
func processorTimeHere() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, err
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
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

// processTime is what a process has taken with all of its threads, where the system tells by a file; zero elsewhere.
func processTime(pid int) (time.Duration, error) {
	times, err := statTimes(pid)
	return times.own, err
}

// treeTime is what a process has taken and all that it started, those that have ended included. Each of them must have
// one thread, as those of PostgreSQL do: the system tells nanoseconds of a thread, and a hundredth of a second of a
// process.
func treeTime(pid int) (sum time.Duration, err error) {
	times, err := statTimes(pid)
	if err != nil {
		return 0, err
	}
	below, err := proc.Descendants(pid)
	if err != nil {
		return 0, err
	}
	sum = times.ended
	for _, each := range append(below, pid) {
		spent, err := threadTime(each)
		if err != nil {
			return 0, err
		}
		sum += spent
	}
	return sum, nil
}

// threadTime is what the first thread of a process has taken. One that has just ended has taken nothing: its time is
// among that of ended ones by the next look.
func threadTime(pid int) (time.Duration, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return processTime(pid)
	}
	if errors.Is(err, syscall.ESRCH) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	nanos, _, _ := strings.Cut(string(line), " ")
	n, err := strconv.ParseInt(nanos, 10, 64)
	return time.Duration(n), err
}

// spentTimes are what a process has taken, and what those have that it started and that have ended.
type spentTimes struct{ own, ended time.Duration }

func statTimes(pid int) (t spentTimes, err error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	// The name of the program is in parentheses and may hold anything. After it the times are from the 12th on.
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
	for i, sum := range []*time.Duration{&t.own, &t.own, &t.ended, &t.ended} {
		ticks, err := strconv.ParseInt(fields[11+i], 10, 64)
		if err != nil {
			return t, err
		}
		*sum += time.Duration(ticks) * time.Second / ticksPerSecond
	}
	return t, nil
}

// ticksPerSecond is the unit of those times, which is the same on all of Linux.
const ticksPerSecond = 100
