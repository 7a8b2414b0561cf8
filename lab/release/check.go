package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"

	"github.com/onceward/onceward/lab/modules"
)

// check says everything that keeps a tree from being released at a version.
func check(ctx context.Context, tree *modules.Tree, version string) error {
	if err := checkForm(version); err != nil {
		return err
	}
	return errors.Join(
		checkClean(ctx, tree),
		checkNewer(ctx, tree, version),
		checkModules(tree, version),
		checkWorkspace(tree, version),
		checkChangelog(tree, version),
	)
}

// checkForm refuses what is not the full form of a version that the module paths allow.
func checkForm(version string) error {
	switch {
	case semver.Canonical(version) != version:
		return fmt.Errorf("%q is not a version of the form vX.Y.Z", version)
	case module.CheckPathMajor(version, "") != nil:
		return fmt.Errorf("%s needs module paths that end in /%s", version, semver.Major(version))
	default:
		return nil
	}
}

// checkClean refuses a tree that is not what its last commit says: tags name commits.
func checkClean(ctx context.Context, tree *modules.Tree) error {
	changed, err := modules.Git(ctx, tree.Root, "status", "--porcelain")
	if err == nil && changed != "" {
		err = fmt.Errorf("the tree is not clean:\n%s", strings.TrimRight(changed, "\n"))
	}
	return err
}

// checkNewer refuses a version that is not above every version that was tagged, of any module.
func checkNewer(ctx context.Context, tree *modules.Tree, version string) error {
	tags, err := modules.Git(ctx, tree.Root, "tag", "--list")
	if err != nil {
		return err
	}
	for tag := range strings.FieldsSeq(tags) {
		tagged := tag[strings.LastIndex(tag, "/")+1:]
		if semver.IsValid(tagged) && semver.Compare(tagged, version) >= 0 {
			return fmt.Errorf("%s is not above the tag %s", version, tag)
		}
	}
	return nil
}

// checkModules refuses a go.mod that would mean something else to a user than it means here.
func checkModules(tree *modules.Tree, version string) error {
	var wrong []error
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if tree.Version != version {
		refuse("the Makefile names version %s: run 'make set-version VERSION=%s'", tree.Version, version)
	}
	known := make(map[string]bool)
	for _, m := range tree.Modules {
		known[m.Path] = true
	}
	for _, m := range tree.Modules {
		if want := strings.TrimSuffix(modules.Path+"/"+m.Dir, "/."); m.Path != want {
			refuse("%s/go.mod declares the module %s, want %s", m.Dir, m.Path, want)
		}
		for _, r := range m.Mod.Replace {
			refuse("%s/go.mod replaces %s: only go.work may", m.Dir, r.Old.Path)
		}
		for _, sibling := range m.Siblings() {
			switch {
			case !known[sibling.Path]:
				refuse("%s/go.mod requires %s, which is no module of this repository", m.Dir, sibling.Path)
			case sibling.Version != version:
				refuse("%s/go.mod requires %s at %s, want %s", m.Dir, sibling.Path, sibling.Version, version)
			}
		}
	}
	return errors.Join(wrong...)
}

// checkWorkspace refuses a go.work that is not what scripts/workspace.sh writes: all modules, each in the place of its
// version.
func checkWorkspace(tree *modules.Tree, version string) error {
	name := filepath.Join(tree.Root, "go.work")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	work, err := modfile.ParseWork(name, text, nil)
	if err != nil {
		return err
	}
	used, replaced := make(map[string]bool), make(map[module.Version]string)
	for _, use := range work.Use {
		used[filepath.ToSlash(filepath.Clean(use.Path))] = true
	}
	for _, r := range work.Replace {
		replaced[r.Old] = filepath.ToSlash(filepath.Clean(r.New.Path))
	}
	ok := len(work.Use) == len(tree.Modules) && len(work.Replace) == len(tree.Modules)
	for _, m := range tree.Modules {
		ok = ok && used[m.Dir] && replaced[module.Version{Path: m.Path, Version: version}] == m.Dir
	}
	if !ok {
		return fmt.Errorf("go.work does not name exactly the modules of this repository at %s: run 'make tidy'", version)
	}
	return checkOwnWorkspaces(tree, version)
}

// checkOwnWorkspaces refuses the go.work of a module's own directory that does not name exactly this module, and each
// sibling that the module requires in the place of its version. The go command takes the nearest go.work.
func checkOwnWorkspaces(tree *modules.Tree, version string) error {
	var wrong []error
	for _, m := range tree.Modules {
		if m.Dir == "." || !slices.Contains(m.Files, "go.work") {
			continue
		}
		name := filepath.Join(tree.Root, filepath.FromSlash(m.Dir), "go.work")
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		work, err := modfile.ParseWork(name, text, nil)
		if err != nil {
			return err
		}
		up := strings.Repeat("../", strings.Count(m.Dir, "/")+1)
		replaced := make(map[module.Version]string)
		for _, r := range work.Replace {
			replaced[r.Old] = path.Clean(filepath.ToSlash(r.New.Path))
		}
		siblings := m.Siblings()
		ok := len(work.Use) == 1 && work.Use[0].Path == "." && len(replaced) == len(siblings)
		for _, sibling := range siblings {
			dir := path.Clean(up + strings.TrimPrefix(strings.TrimPrefix(sibling.Path, modules.Path), "/"))
			ok = ok && replaced[module.Version{Path: sibling.Path, Version: version}] == dir
		}
		if !ok {
			wrong = append(wrong, fmt.Errorf("%s/go.work does not name exactly the module and what it requires at %s: run 'make tidy'",
				m.Dir, version))
		}
	}
	return errors.Join(wrong...)
}

// checkChangelog refuses a version about which the changelog says nothing.
func checkChangelog(tree *modules.Tree, version string) error {
	text, err := os.ReadFile(filepath.Join(tree.Root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	section := regexp.MustCompile(`(?m)^## \[(Unreleased|` + regexp.QuoteMeta(strings.TrimPrefix(version, "v")) + `)\]`)
	if !section.Match(text) {
		return fmt.Errorf("CHANGELOG.md has neither a section [%s] nor [Unreleased]", strings.TrimPrefix(version, "v"))
	}
	return nil
}

// checkBuild builds all packages of each module as a user would get them: from a proxy, without go.work, by its own
// go.mod alone.
func checkBuild(ctx context.Context, tree *modules.Tree, version string, say func(string, ...any)) (err error) {
	dir, err := os.MkdirTemp("", "onceward-release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	proxy := modules.Proxy(filepath.Join(dir, "proxy"))
	if err := proxy.AddTree(tree, version); err != nil {
		return err
	}
	sandbox, err := modules.NewSandbox(ctx, dir, proxy)
	if err != nil {
		return err
	}
	var failed []error
	for i, m := range tree.Modules {
		say("build %d/%d %s", i+1, len(tree.Modules), m.Path)
		goMod := fmt.Sprintf("module example.com/user\n\ngo %s\n\nrequire %s %s\n",
			tree.Modules[0].Mod.Go.Version, m.Path, version)
		user, err := sandbox.Module(fmt.Sprintf("user%d", i), goMod, nil)
		if err != nil {
			return err
		}
		if packages := m.Packages(); len(packages) > 0 {
			_, err = sandbox.Go(ctx, user, append([]string{"build"}, packages...)...)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}
