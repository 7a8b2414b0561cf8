package main

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/internal/servers"
)

// TestMigrate: only up changes tables, and check tells whether they can be used.
func TestMigrate(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"SQLite", "PostgreSQL", "MySQL"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := &service{url: stores[kind](t)}
			for _, args := range [][]string{{"keys", "list"}, {"stats"}, {"health"}} {
				if result := s.onceward(t, args...); result.Code == exitOK || !strings.Contains(result.Stdout+result.Stderr, "migrate") {
					t.Errorf("%q on no tables: exit code %d: %s", args, result.Code, result.Stderr)
				}
			}
			s.must(t, "migrate", "up", "--dry-run")
			s.wantCode(t, exitFailed, "onceward migrate up", "migrate", "check")
			if status := objects[schemaStatus](t, s, "migrate", "status")[0]; status.Version != 0 || status.OK {
				t.Errorf("looking has made tables: %+v", status)
			}
			s.wantCode(t, exitRefused, "nothing was done", "migrate", "up")
			s.wantCode(t, exitRefused, "give --yes", "migrate", "up", "--json")
			s.wantCode(t, exitFailed, "there are no tables", "migrate", "check")
			says(t, s.must(t, "migrate", "up", "--yes"), "from version 0 to ", "_tables.sql", "this program needs")
			s.must(t, "migrate", "check")
			s.must(t, "migrate", "up") // there is nothing to ask about
			if status := objects[schemaStatus](t, s, "migrate", "status")[0]; !status.OK || len(status.Pending) != 0 {
				t.Errorf("the tables stand at %+v", status)
			}
			says(t, s.must(t, "migrate", "print"), "Nothing to do")
			says(t, s.must(t, "keys", "list"), "None.")
			s.wantCode(t, exitUsage, "no migrations after version 99", "migrate", "print", "--from", "99")
		})
	}
	redis := &service{url: stores["Redis"](t)}
	redis.wantCode(t, exitUsage, "Redis has no tables", "migrate", "up")
	redis.wantCode(t, exitUsage, "Redis has no tables", "migrate", "print", "--from", "0")
	dynamo := &service{url: "dynamodb://records?region=eu-central-1"}
	dynamo.wantCode(t, exitUsage, "DynamoDB has no migrations", "migrate", "status")
}

// TestMigratePrint: what is printed is what psql runs, and then the tables are right.
func TestMigratePrint(t *testing.T) {
	t.Parallel()
	s := &service{url: servers.Postgres(t).SchemaURL(t)}
	script := file(t, s.must(t, "migrate", "print"))
	address, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	parameters := address.Query() // one of them psql takes as an option only
	schema := parameters.Get("search_path")
	parameters.Del("search_path")
	address.RawQuery = parameters.Encode()
	psql := exec.Command("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", script, address.String())
	psql.Env = append(os.Environ(), "PGOPTIONS=-csearch_path="+schema)
	result := proctest.Run(t, psql)
	if result.Code != 0 {
		t.Fatalf("psql: %s", result.Stderr)
	}
	s.must(t, "migrate", "check")
	says(t, s.must(t, "migrate", "print"), "Nothing to do")
}

// lookings are the commands that only look.
func lookings(s *service) [][]string {
	commands := [][]string{
		{"keys", "list"},
		{"keys", "list", "--state", "unknown", "--due"},
		{"keys", "show", s.paid.Hash()},
		{"keys", "show", "pi_order-paid"},
		{"keys", "show", s.phased.Hash()},
		{"keys", "bust", s.paid.Hash(), "--dry-run"},
		{"unknown", "list"},
		{"unknown", "list", "--lost"},
		{"unknown", "resolve", s.unknown.Hash(), "--not-executed", "--dry-run"},
		{"dead", "list"},
		{"audit"},
		{"audit", "--executions"},
		{"audit", s.paid.Hash()},
		{"stats"},
		{"top", "--once", "--every", "100ms"},
		{"health", "--max-dead", "9", "--max-outbox-dead", "9"},
	}
	if s.letter != "" {
		commands = append(commands, []string{"outbox", "list"}, []string{"outbox", "show", s.letter},
			[]string{"migrate", "status"}, []string{"migrate", "check"}, []string{"migrate", "print"})
	}
	return commands
}

// TestReadOnlyRole: everything that only looks does with a role that may only read, and an act says what it lacks.
func TestReadOnlyRole(t *testing.T) {
	t.Parallel()
	s := newService(t, servers.Postgres(t).SchemaURL(t))
	reader := *s
	reader.url = readingRole(t, s.url)
	for _, args := range lookings(s) {
		reader.must(t, args...)
	}
	result := reader.onceward(t, acting("keys", "bust", s.paid.Hash())...)
	if result.Code != exitUnavailable {
		t.Errorf("an act of who may only read: exit code %d: %s", result.Code, result.Stderr)
	}
	says(t, result.Stderr, "nothing was done, because it could not be written to the audit", "permission denied")
	if len(s.audited(t, s.paid)) != 0 {
		t.Error("an act that was refused is in the audit")
	}
}

// TestReadOnlyFile: looking does with a file that may only be read, and leaves it as it is, whoever looks.
func TestReadOnlyFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	s := newService(t, "sqlite:"+path)
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	before := content(t, path)
	for name, mode := range map[string]os.FileMode{path: 0o444, filepath.Dir(path): 0o555} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Dir(path), 0o755) })
	for _, args := range lookings(s) {
		s.must(t, args...)
	}
	if content(t, path) != before {
		t.Error("the file has changed")
	}
}

// TestWatchingAFile: who may only read a file that no process has open, and goes on looking, sees what others do to it.
func TestWatchingAFile(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "onceward-watch-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "store.db")
	s := newService(t, "sqlite:"+path)
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(path, 0o644), os.Chmod(dir, 0o555)); err != nil {
		t.Fatal(err)
	}
	program, err := builtProgram()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, "stats", "--json", "--watch", "--every", "100ms", "--store", s.url)
	if os.Getuid() == 0 { // who may do everything
		proc.RunAs(command, 65534, 65534)
	}
	watching := proctest.Start(t, command)
	if line := watching.Hear("{"); !strings.Contains(line, `"completed":1`) {
		t.Fatalf("shown at first: %s", line)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.must(t, acting("keys", "bust", s.paid.Hash())...)
	await.That(t, "the watch shows that nothing is completed", func() bool {
		return strings.Contains(watching.Hear("{"), `"completed":0`)
	})
}

// TestNoFileYet: a file that does not exist is called so.
func TestNoFileYet(t *testing.T) {
	t.Parallel()
	s := &service{url: "sqlite:" + filepath.Join(t.TempDir(), "none.db")}
	for _, args := range [][]string{{"keys", "list"}, {"migrate", "check"}, {"migrate", "status"}, {"health"}} {
		if result := s.onceward(t, args...); !strings.Contains(result.Stdout+result.Stderr, "does not exist") {
			t.Errorf("%q: exit code %d: %s%s", args, result.Code, result.Stdout, result.Stderr)
		}
	}
}

// TestFullDisk: what could not be written is no success, whatever was to be said.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return // Linux has it
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = full.Close() }()
	program, err := builtProgram()
	if err != nil {
		t.Fatal(err)
	}
	s := &service{url: stores["SQLite"](t)}
	s.must(t, "migrate", "up", "--yes")
	for _, line := range []string{
		"keys list", "unknown list", "dead list", "outbox list", "audit", "stats", "top --once --every 100ms", "health",
		"migrate status", "migrate print --from 0", "migrate check", "completion bash", "version", "--version", "--help",
		"keys --help",
	} {
		var said strings.Builder
		command := exec.Command(program, strings.Fields(line)...)
		command.Env = append(os.Environ(), "ONCEWARD_STORE="+s.url)
		command.Stdout, command.Stderr = full, &said
		if err := command.Run(); err == nil || !strings.Contains(said.String(), "no space left") {
			t.Errorf("%s: %v: %s", line, err, said.String())
		}
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	read, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(read)
}
