package servers

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
