package servers

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// TemplatesVariable is the environment variable with the directory
// in which the processes of one test run share templates.
const TemplatesVariable = "ONCEWARD_TEST_TEMPLATES"

// template is the data of a new server, which are copied for
// each server: their creation takes a second, a copy much less.
type template struct {
	// name is the name of the kind of server, for directories.
	name string

	mu sync.Mutex
	// dir no longer exists if its workspace was removed meanwhile.
	dir  string
	made int
}

// newDir creates a directory for a server, with a copy of the template in "data".
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

// find finds the data of another process, or creates and shares
// them. If two processes do so at once, one keeps its own.
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
