package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onceward/onceward/lab/modules"
)

// released are the files of a small repository of two modules that can be released at v0.2.0.
var released = map[string]string{
	"Makefile":     "GO ?= go\nVERSION ?= v0.2.0\n",
	"CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n",
	"go.mod":       "module " + modules.Path + "\n\ngo 1.26.0\n",
	"root.go":      "package onceward\n",
	"go.work": "go 1.26.0\n\nuse (\n\t.\n\t./store/sqlite\n)\n\nreplace (\n\t" + modules.Path + " v0.2.0 => ./\n\t" +
		modules.Path + "/store/sqlite v0.2.0 => ./store/sqlite\n)\n",
	"store/sqlite/go.mod": "module " + modules.Path + "/store/sqlite\n\ngo 1.26.0\n\n" +
		"require " + modules.Path + " v0.2.0\n",
	"store/sqlite/sqlite.go": "package sqlite\n\nimport _ \"" + modules.Path + "\"\n",
}

// repository makes the released files into a commit, with changes: a file without text is not there.
func repository(t *testing.T, changes map[string]string) string {
	t.Helper()
	// Nothing that these modules need is anywhere else.
	t.Setenv("GOPROXY", "off")
	root := t.TempDir()
	files := maps.Clone(released)
	maps.Copy(files, changes)
	for name, text := range files {
		if text != "" {
			write(t, root, name, text)
		}
	}
	git(t, root, "init", "-q")
	git(t, root, "add", ".")
	git(t, root, "commit", "-q", "-m", "Start")
	return root
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	file := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, root string, args ...string) {
	t.Helper()
	identity := []string{"-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"}
	args = append(identity, args...)
	if _, err := modules.Git(t.Context(), root, args...); err != nil {
		t.Fatal(err)
	}
}

// ownWork is a go.work of the directory of a module.
const ownWork = "go 1.26.0\n\nuse .\n\nreplace " + modules.Path + " v0.2.0 => ../..\n"

func TestReleaseIsPrinted(t *testing.T) {
	root := repository(t, map[string]string{"store/sqlite/go.work": ownWork})
	git(t, root, "tag", "v0.1.9")
	git(t, root, "tag", "store/sqlite/v0.1.9")
	var out strings.Builder
	if err := run(t.Context(), root, []string{"check", "v0.2.0"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"git tag -a v0.2.0 -m 'Release v0.2.0'\n",
		"git tag -a store/sqlite/v0.2.0 -m 'Release v0.2.0'\n",
		"git push --atomic origin v0.2.0 store/sqlite/v0.2.0\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
	tags, err := modules.Git(t.Context(), root, "tag", "--list")
	if err != nil || strings.Contains(tags, "v0.2.0") {
		t.Errorf("tags after a check: %q, %v; want none that is new", tags, err)
	}
}

func TestReleaseRefuses(t *testing.T) {
	sqlite := released["store/sqlite/go.mod"]
	tests := []struct {
		name    string
		version string
		changes map[string]string
		tags    []string
		dirty   bool
		want    string
	}{
		{name: "no version", version: "next", want: "not a version"},
		{name: "half a version", version: "v0.2", want: "not a version"},
		{name: "a build", version: "v0.2.0+linux", want: "not a version"},
		{name: "a major version without its path", version: "v2.0.0", want: "module paths that end in /v2"},
		{name: "a version that exists", tags: []string{"v0.2.0"}, want: "not above the tag v0.2.0"},
		{name: "a lower version", tags: []string{"v0.10.0"}, want: "not above the tag v0.10.0"},
		{name: "the version of another module", tags: []string{"store/old/v0.2.0"}, want: "not above the tag store/old/v0.2.0"},
		{name: "a tree that is not clean", dirty: true, want: "not clean"},
		{name: "another version in the Makefile", version: "v0.3.0", want: "the Makefile names version v0.2.0"},
		{
			name: "a sibling at another version", want: "requires " + modules.Path + " at v0.1.0",
			changes: map[string]string{"store/sqlite/go.mod": strings.Replace(sqlite, "v0.2.0", "v0.1.0", 1)},
		},
		{
			name: "a sibling that is not there", want: "no module of this repository",
			changes: map[string]string{"store/sqlite/go.mod": sqlite + "\nrequire " + modules.Path + "/store/gone v0.2.0\n"},
		},
		{
			name: "a replace", want: "replaces",
			changes: map[string]string{"store/sqlite/go.mod": sqlite + "\nreplace " + modules.Path + " => ../..\n"},
		},
		{
			name: "a module with the path of another place", want: "declares the module",
			changes: map[string]string{"store/sqlite/go.mod": strings.Replace(sqlite, "/store/sqlite", "/store/lite", 1)},
		},
		{
			name: "a changelog that says nothing", want: "CHANGELOG.md has neither",
			changes: map[string]string{"CHANGELOG.md": "# Changelog\n\n## [0.1.0]\n"},
		},
		{
			name: "a go.work without a module", want: "go.work does not name",
			changes: map[string]string{"go.work": "go 1.26.0\n\nuse .\n\nreplace " + modules.Path + " v0.2.0 => ./\n"},
		},
		{
			name: "a go.work of another version", want: "go.work does not name",
			changes: map[string]string{"go.work": strings.Replace(released["go.work"], "v0.2.0", "v0.1.0", 1)},
		},
		{
			name: "a go.work of a module's own without what the module requires", want: "store/sqlite/go.work does not name",
			changes: map[string]string{"store/sqlite/go.work": "go 1.26.0\n\nuse .\n"},
		},
		{
			name: "a go.work of a module's own of another version", want: "store/sqlite/go.work does not name",
			changes: map[string]string{"store/sqlite/go.work": strings.Replace(ownWork, "v0.2.0", "v0.1.0", 1)},
		},
		{
			name: "a module that needs more than it requires", want: "store/sqlite",
			changes: map[string]string{"store/sqlite/sqlite.go": "package sqlite\n\nimport _ \"" + modules.Path + "/outbox\"\n"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := repository(t, test.changes)
			for _, tag := range test.tags {
				git(t, root, "tag", tag)
			}
			if test.dirty {
				write(t, root, "new.txt", "not committed\n")
			}
			version := test.version
			if version == "" {
				version = "v0.2.0"
			}
			var out strings.Builder
			err := run(t.Context(), root, []string{"check", version}, &out)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one that says %q", err, test.want)
			}
			if strings.Contains(out.String(), "git tag") {
				t.Errorf("commands are printed for a release that is refused:\n%s", out.String())
			}
		})
	}
}

func TestVersionIsSetEverywhere(t *testing.T) {
	script, err := os.ReadFile(filepath.Join("..", "..", "scripts", "workspace.sh"))
	if err != nil {
		t.Fatal(err)
	}
	root := repository(t, map[string]string{"scripts/workspace.sh": string(script)})
	if err := run(t.Context(), root, []string{"set", "v0.3.0"}, os.Stdout); err != nil {
		t.Fatal(err)
	}
	git(t, root, "commit", "-q", "-a", "-m", "Set the version")
	tree, err := modules.Load(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	if err := check(t.Context(), tree, "v0.3.0"); err != nil {
		t.Error(err)
	}
}

func TestReleaseNeedsItsArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"check"}, {"push", "v0.2.0"}} {
		if err := run(t.Context(), repository(t, nil), args, os.Stdout); err == nil {
			t.Errorf("arguments %q are accepted", args)
		}
	}
}
