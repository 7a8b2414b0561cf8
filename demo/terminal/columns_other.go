//go:build !unix

package terminal

import "os"

// columnsOf returns 0: the width is not known on this system.
func columnsOf(*os.File) int { return 0 }
