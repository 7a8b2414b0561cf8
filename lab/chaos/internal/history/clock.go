package history

import "golang.org/x/sys/unix"

// Now is the machine's monotonic clock in nanoseconds. It is the same for all processes, and cannot be set.
func Now() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		// Every kernel that Go runs on has this clock, and without it no order in the history means anything.
		panic("history: the monotonic clock cannot be read: " + err.Error())
	}
	return now.Nano()
}
