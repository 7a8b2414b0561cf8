package rehearsal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// directory is the directory of the files that outlive the processes of a demo.
type directory struct {
	path      string
	temporary bool
	// lock is the open lock file, held while the directory is in use.
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

// close removes a temporary directory. A directory that the user has chosen stays.
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

// secret returns one of the system's secrets, which is made at the first start. It stays the
// same over a restart, because stored answers could not be recognised with another secret.
func (d directory) secret(name string) ([]byte, error) {
	secret, _, err := d.keep(name, func() string { return rand.Text() + rand.Text() })
	return []byte(secret), err
}

// keep returns the content of a file, which is made at the first start. It reports whether the file existed.
func (d directory) keep(name string, create func() string) (content string, kept bool, err error) {
	path := d.file(name)
	found, err := os.ReadFile(path)
	if !errors.Is(err, os.ErrNotExist) {
		return string(found), true, err
	}
	content = create()
	return content, false, os.WriteFile(path, []byte(content), 0o600)
}
