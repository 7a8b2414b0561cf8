//go:build !linux

package doctor

import (
	"context"
	"io/fs"
)

// errNotLinux is the reason why some checks of files are not made.
const errNotLinux = errNotTried("this is looked at on Linux only")

func tryFileSystem(context.Context, *sqlite, *Result) error { return errNotLinux }

func trySpace(context.Context, *sqlite, *Result) error { return errNotLinux }

func tryLinks(context.Context, *sqlite, *Result) error { return errNotLinux }

// ownerOf returns the owner of a file, where it is known.
func ownerOf(fs.FileInfo) (uid int, ok bool) { return 0, false }

// tryFileLock does nothing: SQLite's own locks are tested elsewhere.
func tryFileLock(*sqlite, *Result, string) error { return nil }
