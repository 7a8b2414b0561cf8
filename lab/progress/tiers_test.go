package main

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the root of the repository.
const root = "../.."

// packagesWithTests lists all packages of the repository.
func packagesWithTests(t *testing.T, flags ...string) []pkg {
	t.Helper()
	all, err := list(t.Context(), "go", append([]string{tags}, flags...), []string{"work"})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// compiledIn returns the test files that a tier compiles.
func compiledIn(t *testing.T, tier string, plain, race []pkg) map[string]bool {
	t.Helper()
	batches, err := batchesOf(tier, plain)
	if err != nil {
		t.Fatal(err)
	}
	watched := make(map[string]pkg)
	for _, p := range race {
		watched[p.ImportPath] = p
	}
	files := make(map[string]bool)
	for _, b := range batches {
		for _, p := range b.packages {
			if b.race {
				p = watched[p.ImportPath]
			}
			for _, name := range append(slices.Clone(p.TestGoFiles), p.XTestGoFiles...) {
				files[filepath.Join(p.Dir, name)] = true
			}
		}
	}
	return files
}

// TestEveryTestFileRuns: a test file of the tree that neither make test nor make test-all compiles is held by nothing.
func TestEveryTestFileRuns(t *testing.T) {
	plain, race := packagesWithTests(t), packagesWithTests(t, "-race")
	test, all := compiledIn(t, tierTest, plain, race), compiledIn(t, tierAll, plain, race)
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	var onlyAll []string
	for _, file := range testFiles(t, top) {
		switch {
		case test[file]:
		case all[file]:
			onlyAll = append(onlyAll, strings.TrimPrefix(file, top+"/"))
		default:
			t.Errorf("%s runs neither in make test nor in make test-all", file)
		}
		delete(all, file)
	}
	if len(all) > 0 {
		t.Errorf("the tree lacks files that are compiled: %v", slices.Sorted(maps.Keys(all)))
	}
	for _, file := range onlyAll {
		if !slices.ContainsFunc(nightly, func(room string) bool { return strings.HasPrefix("./"+file, room+"/") }) {
			t.Errorf("%s runs in make test-all alone, and its package is not in the list of such packages", file)
		}
	}
}

// testFiles returns all test files below a directory, but the ones that tests use as material.
func testFiles(t *testing.T, top string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || path != top && strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestListsNameRooms: a package that was moved or removed leaves no name in the lists.
func TestListsNameRooms(t *testing.T) {
	for _, room := range slices.Concat(racing, single, nightly, quickLab, slowest) {
		if _, err := os.Stat(filepath.Join(root, room)); err != nil {
			t.Error(err)
		}
	}
}

// TestTiers: who needs a server, who is watched, and that all is everything.
func TestTiers(t *testing.T) {
	server := []string{module + "/internal/servers"}
	all := []pkg{
		{ImportPath: module},
		{ImportPath: module + "/store/postgres", XTestImports: server},
		{ImportPath: module + "/phase/part", counts: true},
		{ImportPath: module + "/phases"},
		{ImportPath: module + "/lab/feature/orm", TestImports: server},
		{ImportPath: module + "/lab/model"},
		{ImportPath: module + "/lab/count"},
		{ImportPath: module + "/internal/servers"},
	}
	for tier, want := range map[string][]string{
		tierQuick: {". ./phase/part ./phases ./lab/count"},
		tierTest:  {"./store/postgres ./phases ./lab/model ./lab/count ./internal/servers", ". ./phase/part", "./phase/part"},
		tierAll: {
			"./store/postgres . ./phase/part ./phases ./lab/feature/orm ./lab/count ./internal/servers", "./lab/model", "./phase/part",
		},
	} {
		batches, err := batchesOf(tier, all)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, b := range batches {
			var rooms []string
			for _, p := range b.packages {
				rooms = append(rooms, p.room())
			}
			got = append(got, strings.Join(rooms, " "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", tier, got, want)
		}
	}
	if _, err := batchesOf("most", all); err == nil {
		t.Error("a tier that does not exist has batches")
	}
}
