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

// SetClock writes the file. All nodes see the new offset at once, as they would if somebody set the machine's clock.
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

// openClock returns a clock that is off by what the file says. The file is mapped into memory, because the store reads its
// clock all the time.
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
		return time.Now().Add(time.Duration(binary.LittleEndian.Uint64(mapped)))
	}, nil
}
