package demo

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
}

func openDirectory(path string) (directory, error) {
	if path == "" {
		path, err := os.MkdirTemp("", "onceward-demo-")
		return directory{path: path, temporary: true}, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return directory{}, fmt.Errorf("the data directory cannot be made: %w: choose another one with --dir", err)
	}
	return directory{path: path}, nil
}

// remove removes a temporary directory. One that the user has chosen stays.
func (d directory) remove() error {
	if !d.temporary {
		return nil
	}
	return os.RemoveAll(d.path)
}

func (d directory) file(name string) string { return filepath.Join(d.path, name) }

// secret reads one of the secrets of the system, or makes it at the first start. It stays the same over a restart: with another
// one no stored answer could be recognised.
func (d directory) secret(name string) ([]byte, error) {
	path := d.file(name)
	secret, err := os.ReadFile(path)
	if !errors.Is(err, os.ErrNotExist) {
		return secret, err
	}
	secret = []byte(rand.Text() + rand.Text())
	return secret, os.WriteFile(path, secret, 0o600)
}
