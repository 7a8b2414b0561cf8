package main

import (
	"encoding/binary"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm wakes up after a time that is shorter than the millisecond by which a process of Go that has nothing to do may
// be late. It is a timer of the system that is read as a file, so that no thread waits for it.
type alarm struct{ file *os.File }

func newAlarm() (alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return alarm{}, os.NewSyscallError("timerfd_create", err)
	}
	return alarm{os.NewFile(uintptr(fd), "timer")}, nil
}

// sleep waits so long, or not at all if the system refuses the timer, which it has no reason for.
func (a alarm) sleep(wait time.Duration) {
	raw, err := a.file.SyscallConn()
	if err != nil {
		return
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(wait))}, nil)
	})
	if err == nil && set == nil {
		var expired uint64
		_ = binary.Read(a.file, binary.NativeEndian, &expired)
	}
}

func (a alarm) close() error { return a.file.Close() }
