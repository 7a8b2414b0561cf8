//go:build !unix

package rehearsal

import "os"

// lock does nothing: this system is not one on which several demos in one directory were thought of.
func lock(*os.File) error { return nil }
