//go:build unix

package sqlite

import (
	"io/fs"
	"os"
	"syscall"
)

// own gives a new file to the owner of another file, if that owner is another user.
func own(file *os.File, like fs.FileInfo) error {
	owner, ok := like.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) == os.Geteuid() {
		return nil
	}
	return file.Chown(int(owner.Uid), int(owner.Gid))
}
