//go:build !unix

package rehearsal

import "os"

// lock does nothing: several demos in one directory are not detected on this system.
func lock(*os.File) error { return nil }
