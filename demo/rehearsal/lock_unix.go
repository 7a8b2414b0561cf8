//go:build unix

package rehearsal

import (
	"os"

	"golang.org/x/sys/unix"
)

// lock locks a file for this process, until it is closed or the process ends in any way.
func lock(file *os.File) error {
	return unix.FcntlFlock(file.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
}
