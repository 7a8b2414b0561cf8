package rehearsal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// directory is where a demo keeps what outlives its processes.
type directory struct {
	path      string
	temporary bool
	// lock is held open for as long as the directory is in use.
	lock *os.File
}

func openDirectory(path string) (directory, error) {
	if path == "" {
		path, err := os.MkdirTemp("", "onceward-demo-")
		return directory{path: path, temporary: true}, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return directory{}, fmt.Errorf("the data directory cannot be made: %w: choose another one with --dir", err)
	}
	file, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return directory{}, fmt.Errorf("the data directory cannot be written to: %w: choose another one with --dir", err)
	}
	if err := lock(file); err != nil {
		_ = file.Close() // nothing was written to it
		return directory{}, fmt.Errorf(
			"the data directory %s is in use by another demo: end that one, or choose another --dir", path)
	}
	return directory{path: path, lock: file}, nil
}

// close removes a temporary directory. One that the user has chosen stays, for others to use.
func (d directory) close() error {
	if d.lock != nil {
		return d.lock.Close()
	}
	if !d.temporary {
		return nil
	}
	return os.RemoveAll(d.path)
}

func (d directory) file(name string) string { return filepath.Join(d.path, name) }

// secret reads one of the secrets of the system, or makes it at the first start. It stays the same over a restart: with
// another one no stored answer could be recognised.
func (d directory) secret(name string) ([]byte, error) {
	secret, _, err := d.keep(name, func() string { return rand.Text() + rand.Text() })
	return []byte(secret), err
}

// keep reads a file, or makes it at the first start. It reports whether the file was there.
func (d directory) keep(name string, create func() string) (content string, kept bool, err error) {
	path := d.file(name)
	found, err := os.ReadFile(path)
	if !errors.Is(err, os.ErrNotExist) {
		return string(found), true, err
	}
	content = create()
	return content, false, os.WriteFile(path, []byte(content), 0o600)
}
