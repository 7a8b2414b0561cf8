package doctest

import (
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	floorRow  = regexp.MustCompile("(?m)^\\| `([a-z0-9/]+)` \\| (.*) \\|$")
	floor     = regexp.MustCompile("`([^` ]+) (v[^` ]+)`")
	direct    = regexp.MustCompile(`(?m)^(?:\t|require )([^ \n]+) (v[^ \n]+)$`)
	testsOnly = []string{
		"pgregory.net/rapid", "go.uber.org/goleak", "github.com/twmb/franz-go/pkg/kfake", "github.com/nats-io/nats-server/v2",
	}
)

// TestFloors: docs/existing-service.md has, of each module of users, what its go.mod requires.
func TestFloors(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(moduleRoot, "docs", "existing-service.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]map[string]string)
	for _, row := range floorRow.FindAllStringSubmatch(string(page), -1) {
		listed[row[1]] = versions(floor, row[2])
	}
	command := exec.Command("git", "ls-files", "*/go.mod")
	command.Dir = moduleRoot
	files, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range strings.Fields(string(files)) {
		module := path.Dir(file)
		switch room, _, _ := strings.Cut(module, "/"); room {
		case "lab", "demo", "cmd", "examples":
			continue // no module of users: they require the newest
		}
		text, err := os.ReadFile(filepath.Join(moduleRoot, file))
		if err != nil {
			t.Fatal(err)
		}
		required := versions(direct, string(text))
		for _, name := range testsOnly {
			delete(required, name)
		}
		maps.DeleteFunc(required, func(name, _ string) bool { return strings.HasPrefix(name, "github.com/onceward/onceward") })
		if !maps.Equal(listed[module], required) && len(required)+len(listed[module]) > 0 {
			t.Errorf("docs/existing-service.md has %v of %s, whose go.mod requires %v", listed[module], module, required)
		}
	}
}

// versions returns the versions of modules that a pattern finds.
func versions(pattern *regexp.Regexp, text string) map[string]string {
	found := make(map[string]string)
	for _, match := range pattern.FindAllStringSubmatch(text, -1) {
		found[match[1]] = match[2]
	}
	return found
}
