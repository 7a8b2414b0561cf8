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

// installed makes a directory with all programs in it, below ROOT/VERSION/bin.
func installed(t *testing.T, root, version string) (bindir string) {
	t.Helper()
	bindir = filepath.Join(root, version, "bin")
	must(t, os.MkdirAll(bindir, 0o755))
	for _, program := range []string{"initdb", "postgres", "psql"} {
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

// TestMissingEnginesGiveTheInstallLine: who lacks a server is told how to get it.
func TestMissingEnginesGiveTheInstallLine(t *testing.T) {
	t.Parallel()
	for install, find := range map[string]func(machine) error{
		mariadbInstall: func(m machine) error { _, err := findMariaDB(m); return err },
		galeraInstall:  func(m machine) error { _, err := findGalera(m); return err },
		patroniInstall: func(m machine) error {
			dir := installed(t, t.TempDir(), "17")
			m.pgConfig = func() (string, error) { return dir, nil }
			_, err := findPatroni(m)
			return err
		},
	} {
		if err := find(without()); err == nil || !strings.Contains(err.Error(), install) {
			t.Errorf("the error does not say %q: %v", install, err)
		}
	}
}

func TestHalfAnInstallationIsNone(t *testing.T) {
	dir := installed(t, t.TempDir(), "17")
	must(t, os.Remove(filepath.Join(dir, "initdb")))
	m := without()
	m.pgConfig = func() (string, error) { return dir, nil }
	if found, err := findPostgres(m); err == nil {
		t.Errorf("found %v", found)
	}
	if psql, err := findPsql(m); err != nil || psql != filepath.Join(dir, "psql") {
		t.Errorf("found %v, %v; want the client alone", psql, err)
	}
}

func TestPlacesAreTriedInOrder(t *testing.T) {
	root := t.TempDir()
	configured, path := installed(t, root, "15"), installed(t, root, "16")
	old, recent, dotted := installed(t, root, "9"), installed(t, root, "17"), installed(t, root, "9.6")
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

// TestNamedDirectoryIsTheOnlyOne takes the server from the directory that is named, or from nowhere. The client may be
// another.
func TestNamedDirectoryIsTheOnlyOne(t *testing.T) {
	root := t.TempDir()
	configured, named := installed(t, root, "15"), installed(t, root, "18")
	must(t, os.Remove(filepath.Join(named, "psql")))
	m := without()
	m.postgresBin = named
	if found, err := findPostgres(m); err == nil {
		t.Errorf("found %v without a client", found)
	}
	m.pgConfig = func() (string, error) { return configured, nil }
	want := postgresPrograms{
		initdb: filepath.Join(named, "initdb"), postgres: filepath.Join(named, "postgres"), psql: filepath.Join(configured, "psql"),
	}
	if found, err := findPostgres(m); err != nil || found != want {
		t.Errorf("found %v, %v; want %v", found, err, want)
	}
	must(t, os.Remove(filepath.Join(named, "postgres")))
	if found, err := findPostgres(m); err == nil || !strings.Contains(err.Error(), "ONCEWARD_TEST_POSTGRES_BIN") {
		t.Errorf("found %v, %v; want an error that names the variable", found, err)
	}
}

func expect(t *testing.T, m machine, bindir string) {
	t.Helper()
	found, err := findPostgres(m)
	at := func(program string) string { return filepath.Join(bindir, program) }
	if want := (postgresPrograms{at("initdb"), at("postgres"), at("psql")}); err != nil || found != want {
		t.Errorf("found %v, %v; want %v", found, err, want)
	}
}

func TestMissingRabbitMQGivesTheInstallLine(t *testing.T) {
	_, err := findRabbitMQ(without())
	if err == nil {
		t.Fatal("found programs where there are none")
	}
	for _, want := range []string{
		"apt-get update && apt-get install -y --no-install-recommends rabbitmq-server", "make test", "ONCEWARD_TEST_RABBITMQ",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestNewestRabbitMQScriptComesBeforeTheSearchPath(t *testing.T) {
	dir := t.TempDir()
	program := func(name string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, nil, 0o755))
		return path
	}
	old, recent, wrapper, epmd := program("server-3.9.27"), program("server-3.12.1"), program("wrapper"), program("epmd")
	paths := map[string]string{"rabbitmq-server": wrapper, "epmd": epmd}
	m := without()
	m.lookPath = func(name string) (string, error) {
		if path, ok := paths[name]; ok {
			return path, nil
		}
		return "", errors.New("not found")
	}
	expectRabbitMQ(t, m, wrapper)
	m.glob = func(string) ([]string, error) { return []string{old, recent}, nil }
	expectRabbitMQ(t, m, recent)
	delete(paths, "epmd")
	if found, err := findRabbitMQ(m); err == nil {
		t.Errorf("found %v without epmd", found)
	}
}

func expectRabbitMQ(t *testing.T, m machine, server string) {
	t.Helper()
	found, err := findRabbitMQ(m)
	if err != nil || found.server != server {
		t.Errorf("found %v, %v; want %s", found, err, server)
	}
}

func TestMissingRedisGivesTheInstallLine(t *testing.T) {
	_, err := findRedis(without())
	if err == nil {
		t.Fatal("found a program where there is none")
	}
	for _, want := range []string{
		"apt-get update && apt-get install -y --no-install-recommends redis-server", "make test", "ONCEWARD_TEST_REDIS",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestMissingPgBouncerGivesTheInstallLine(t *testing.T) {
	_, err := findPgBouncer(without())
	if err == nil || !strings.Contains(err.Error(), pgbouncerInstall) {
		t.Errorf("the error does not say how to install it: %v", err)
	}
}

func TestMissingPrometheusGivesTheInstallLine(t *testing.T) {
	_, err := findPrometheus(without())
	if err == nil {
		t.Fatal("found a program where there is none")
	}
	for _, want := range []string{
		"apt-get update && apt-get install -y --no-install-recommends prometheus", "make test",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}
