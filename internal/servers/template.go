package servers

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// TemplatesVariable names the environment variable that holds a directory in which the processes of one run of tests
// leave to each other what they copy servers from.
const TemplatesVariable = "ONCEWARD_TEST_TEMPLATES"

// template is the data of a server that never ran, which is copied for each server: to make it takes a second, to copy
// it much less.
type template struct {
	// name is that of the kind of server, in the names of directories.
	name string

	mu sync.Mutex
	// dir is gone if the workspace that it was in was removed in between.
	dir  string
	made int
}

// newDir makes a directory for a server, with a copy of what init has made in "data".
func (t *template) newDir(as owner, init func(dir string) error) (string, error) {
	parent, err := workspace.dir()
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := os.Stat(t.dir); err != nil {
		if t.dir, err = t.find(parent, init); err != nil {
			return "", err
		}
	}
	t.made++
	dir := filepath.Join(parent, t.name+"-"+strconv.Itoa(t.made))
	if err := as.makeDir(dir); err != nil {
		return "", err
	}
	if err := as.copyTree(t.dir, filepath.Join(dir, "data")); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// find finds the data that another process has left, or makes it and leaves it to others. Of two processes that do so
// at once, one keeps its own.
func (t *template) find(parent string, init func(dir string) error) (string, error) {
	common := ""
	if dir := os.Getenv(TemplatesVariable); dir != "" {
		common = filepath.Join(dir, t.name)
		if _, err := os.Stat(common); err == nil {
			return common, nil
		}
	}
	dir := filepath.Join(parent, t.name+"-template")
	if err := init(dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	if common != "" && os.Rename(dir, common) == nil {
		return common, nil
	}
	return dir, nil
}
