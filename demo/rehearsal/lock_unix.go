//go:build unix

package rehearsal

import (
	"os"

	"golang.org/x/sys/unix"
)

// lock makes a file this process's own, until it is closed or the process ends, however that ends.
func lock(file *os.File) error {
	return unix.FcntlFlock(file.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
}
