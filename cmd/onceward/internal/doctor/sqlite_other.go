//go:build !linux

package doctor

import (
	"context"
	"io/fs"
)

// errNotLinux is why some things about files are not looked at.
const errNotLinux = errNotTried("this is looked at on Linux only")

func tryFileSystem(context.Context, *sqlite, *Result) error { return errNotLinux }

func trySpace(context.Context, *sqlite, *Result) error { return errNotLinux }

func tryLinks(context.Context, *sqlite, *Result) error { return errNotLinux }

// ownerOf is the user that a file belongs to, where that is known.
func ownerOf(fs.FileInfo) (uid int, ok bool) { return 0, false }

// tryFileLock does nothing more: what SQLite itself does was tried.
func tryFileLock(*sqlite, *Result, string) error { return nil }
