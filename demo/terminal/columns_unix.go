//go:build unix

package terminal

import (
	"os"

	"golang.org/x/sys/unix"
)

// columnsOf asks the terminal for its width. It is 0 if the file is none.
func columnsOf(file *os.File) int {
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
