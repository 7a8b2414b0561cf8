package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
)

// files returns the database and the files that SQLite puts beside it.
func (p *sqlite) files() []string { return []string{p.path, p.path + "-wal", p.path + "-shm"} }

// tryPermissions checks who may read the files and who owns them.
// The files beside the database exist only while it is open.
func tryPermissions(_ context.Context, p *sqlite, r *Result) error {
	owner, known := 0, false
	for _, path := range p.files() {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if open := info.Mode().Perm() & 0o077; open != 0 {
			r.find(Weak, "chmod 600 "+path, "the permissions of %s are %v: others can read it, or write it", path,
				info.Mode().Perm())
		}
		of, ok := ownerOf(info)
		if known && ok && of != owner {
			r.find(Broken, "stop all that uses the file, and chown it and what is beside it to the user of the service",
				"%s belongs to user %d, and the database to user %d", path, of, owner)
		}
		if !known {
			owner, known = of, ok
			r.saw("%v", info.Mode().Perm())
		}
	}
	info, err := os.Stat(p.dir)
	if err == nil && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		r.find(Weak, "chmod o-w "+p.dir, "everyone can remove files in %s, and put others in their place", p.dir)
	}
	return err
}

// tryDirectory creates a file beside the database, and removes it.
func tryDirectory(_ context.Context, p *sqlite, r *Result) error {
	f, err := os.OpenFile(p.scratch, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = errors.Join(f.Close(), os.Remove(p.scratch))
	}
	if err != nil {
		r.find(Broken, "give the user of the service the directory, and a file system that is not read-only",
			"no file can be made in %s: %v", p.dir, err)
		return nil
	}
	r.saw("a file was made and removed")
	return nil
}
