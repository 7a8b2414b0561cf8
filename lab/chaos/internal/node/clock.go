package node

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ClockSize is the size of a file that holds how far the machine's clock is off, in nanoseconds, least byte first.
const ClockSize = 8

// SetClock writes the file. All nodes see the new offset at once, as they would if an operator set the machine's clock.
func SetClock(path string, offset time.Duration) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(offset)), 0)
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}

// machineTime is what the machine's clock says, also in a process whose own time.Now is shifted: all processes that
// share a file share a machine.
func machineTime() time.Time {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
		panic("node: the machine's clock cannot be read: " + err.Error()) // every system has it
	}
	return time.Unix(now.Unix())
}

// openClock returns a clock that is off by what the file says. The file is mapped into memory, because the store reads
// its clock all the time.
func openClock(path string) (func() time.Time, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	mapped, err := unix.Mmap(int(file.Fd()), 0, ClockSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the clock: %w", err)
	}
	return func() time.Time {
		return machineTime().Add(time.Duration(binary.LittleEndian.Uint64(mapped)))
	}, nil
}
