package servers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// dirPrefix is the prefix of the names of this package's directories. The ID of
// the owning process follows, so that a later process can recognise leftovers.
const dirPrefix = "onceward-servers-"

// workspace is the directory of this process, made on first use.
var workspace space

type space struct {
	mu   sync.Mutex
	path string
}

// dir returns the directory. All users may access it: a server may run as another user than the tests.
func (s *space) dir() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path != "" {
		return s.path, nil
	}
	removeLeftovers(os.TempDir())
	path, err := os.MkdirTemp("", fmt.Sprintf("%s%d-*", dirPrefix, os.Getpid()))
	if err != nil {
		return "", err
	}
	if err := os.Chmod(path, 0o755); err != nil {
		return "", err
	}
	s.path = path
	return path, nil
}

// remove deletes the directory with all that is in it.
func (s *space) remove() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path == "" {
		return nil
	}
	err := os.RemoveAll(s.path)
	s.path = ""
	return err
}

// removeLeftovers deletes the directories of processes that were killed. It
// ignores errors: what cannot be deleted belongs to another user. Containers must
// not share the parent directory, because they do not see each other's processes.
func removeLeftovers(parent string) {
	found, _ := filepath.Glob(filepath.Join(parent, dirPrefix+"*"))
	for _, path := range found {
		if owner := ownerOf(path); owner > 0 && !alive(owner) {
			_ = os.RemoveAll(path)
		}
	}
}

// ownerOf returns the process ID in a directory's name; zero if there is none.
func ownerOf(path string) int {
	rest, _ := strings.CutPrefix(filepath.Base(path), dirPrefix)
	id, _, found := strings.Cut(rest, "-")
	pid, err := strconv.Atoi(id)
	if !found || err != nil {
		return 0
	}
	return pid
}

// alive reports whether a process with this ID may exist. In doubt it returns true.
func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// own changes the owner of a file.
func (o owner) own(path string) error {
	if !o.other {
		return nil
	}
	return os.Lchown(path, o.uid, o.gid)
}

// makeDir creates a directory that only the owner can access.
func (o owner) makeDir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return o.own(path)
}

// copyTree copies a directory with all that is in it to a new place, and gives the copy to the owner.
func (o owner) copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, inside)
		if entry.IsDir() {
			return o.makeDir(target)
		}
		if err := copyFile(path, target); err != nil {
			return err
		}
		return o.own(target)
	})
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = target.ReadFrom(source)
	return errors.Join(err, target.Close())
}
