package servers

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// without is a machine on which nothing is installed.
func without() machine {
	return machine{
		pgConfig: func() (string, error) { return "", os.ErrNotExist },
		lookPath: func(string) (string, error) { return "", os.ErrNotExist },
		glob:     func(string) ([]string, error) { return nil, nil },
	}
}

// installed makes a directory with both programs in it, below VERSION/bin.
func installed(t *testing.T, version string) (bindir string) {
	t.Helper()
	bindir = filepath.Join(t.TempDir(), version, "bin")
	must(t, os.MkdirAll(bindir, 0o755))
	for _, program := range []string{"initdb", "postgres"} {
		must(t, os.WriteFile(filepath.Join(bindir, program), nil, 0o755))
	}
	return bindir
}

func TestMissingProgramsGiveTheInstallLine(t *testing.T) {
	_, err := findPostgres(without())
	if err == nil {
		t.Fatal("found programs where there are none")
	}
	for _, want := range []string{
		"apt-get update && apt-get install -y --no-install-recommends postgresql", "make test", "ONCEWARD_TEST_POSTGRES",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestHalfAnInstallationIsNone(t *testing.T) {
	dir := installed(t, "17")
	must(t, os.Remove(filepath.Join(dir, "initdb")))
	m := without()
	m.pgConfig = func() (string, error) { return dir, nil }
	if found, err := findPostgres(m); err == nil {
		t.Errorf("found %v", found)
	}
}

func TestPlacesAreTriedInOrder(t *testing.T) {
	configured, path := installed(t, "15"), installed(t, "16")
	old, recent, dotted := installed(t, "9"), installed(t, "17"), installed(t, "9.6")
	m := without()
	m.glob = func(string) ([]string, error) { return []string{dotted, recent, old}, nil }
	expect(t, m, recent)
	m.lookPath = func(program string) (string, error) {
		if program == "postgres" {
			return filepath.Join(path, program), nil
		}
		return "", errors.New("not found")
	}
	expect(t, m, path)
	m.pgConfig = func() (string, error) { return configured, nil }
	expect(t, m, configured)
}

func expect(t *testing.T, m machine, bindir string) {
	t.Helper()
	found, err := findPostgres(m)
	if err != nil || found.postgres != filepath.Join(bindir, "postgres") || found.initdb != filepath.Join(bindir, "initdb") {
		t.Errorf("found %v, %v; want %s", found, err, bindir)
	}
}
