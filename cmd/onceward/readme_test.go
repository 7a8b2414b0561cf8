package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/internal/servers"
)

// moduleRoot is where the module lies, seen from this package.
const moduleRoot = "../.."

func readme(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(moduleRoot, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestReadmeProgram builds the program of the README as it stands there, starts it, and types the line below it twice.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	tryReadmeProgram(t, startProgram(t, programOf(t, "README.md")))
}

// TestReadmeProgramOnPostgres: the two lines that the README changes for PostgreSQL are all that it takes.
func TestReadmeProgramOnPostgres(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "TestReadmeProgram runs the same program on SQLite")
	program := programOf(t, "README.md")
	changes := regexp.MustCompile(`(?m)^-(.*)\n\+(.*)$`).FindAllStringSubmatch(readme(t), -1)
	for _, change := range changes {
		if strings.Count(program, change[1]+"\n") != 1 {
			t.Errorf("the program does not have the line %q once", change[1])
		}
		program = strings.Replace(program, change[1]+"\n", change[2]+"\n", 1)
	}
	if len(changes) != 2 {
		t.Fatalf("the README changes %d lines for PostgreSQL, want 2", len(changes))
	}
	tryReadmeProgram(t, startProgram(t, program, "DATABASE_URL="+servers.Postgres(t).SchemaURL(t)))
}

// TestReadmeProgramOnMySQL: the lines that docs/mysql.md changes in the README's program are all that it takes.
func TestReadmeProgramOnMySQL(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(moduleRoot, "docs", "mysql.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, diff, found := strings.Cut(string(page), "```diff\n")
	diff, _, _ = strings.Cut(diff, "```")
	if !found {
		t.Fatal("docs/mysql.md changes nothing in the README's program")
	}
	program, sign := programOf(t, "README.md"), regexp.MustCompile(`(?m)^[-+]`)
	for _, change := range regexp.MustCompile(`((?:-.*\n)+)((?:\+.*\n)+)`).FindAllStringSubmatch(diff, -1) {
		before, after := sign.ReplaceAllString(change[1], ""), sign.ReplaceAllString(change[2], "")
		if strings.Count(program, before) != 1 {
			t.Errorf("the program does not have these lines once:\n%s", before)
		}
		program = strings.Replace(program, before, after, 1)
	}
	server := servers.MariaDB(t)
	tryReadmeProgram(t, startProgram(t, program, "DATABASE_DSN="+server.DSN(server.Database(t))+"?multiStatements=true"))
}

// tryReadmeProgram does what the README says.
func tryReadmeProgram(t *testing.T, url string) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^curl -i http://127\.0\.0\.1:8080/payments .*$`).FindString(readme(t))
	if line == "" {
		t.Fatal("the README says no line to try")
	}
	sh := openShell(t)
	line = strings.Replace(line, "http://127.0.0.1:8080", url, 1)
	first, again := sh.run(t, line), sh.run(t, line)
	if !strings.HasPrefix(first, "HTTP/1.1 201") {
		t.Errorf("a payment: %s", first)
	}
	_, body, _ := strings.Cut(first, "\n\n")
	if !strings.Contains(again, "Idempotent-Replayed: true") || !strings.HasSuffix(again, body) || !strings.Contains(body, "payment ") {
		t.Errorf("the same again: %s, want the first answer: %s", again, first)
	}
	s := &server{url: url}
	if r := s.must(t, "POST", "/payments", "mallory", "order-7", `{}`); r.status != 401 {
		t.Errorf("a payment of mallory: %d %s, want 401", r.status, r.body)
	}
}

// programOf returns the first whole program of a page.
func programOf(t *testing.T, page string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(moduleRoot, page))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(content), "```go\npackage main\n")
	program, _, _ := strings.Cut(rest, "```")
	if !found {
		t.Fatalf("%s has no program", page)
	}
	return "package main\n" + program
}

// startProgram builds and starts it on a free port, and returns its URL.
func startProgram(t *testing.T, program string, env ...string) string {
	t.Helper()
	address := fmt.Sprint("127.0.0.1:", servers.FreePort(t))
	program = strings.Replace(program, "127.0.0.1:8080", address, 1)
	if !strings.Contains(program, address) {
		t.Fatal("there is no program that listens on 127.0.0.1:8080")
	}
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", binary, source)
	build.Dir = moduleRoot
	if built := proctest.Run(t, build); built.Code != 0 {
		t.Fatalf("it does not build: %s", built.Stderr)
	}
	command := exec.Command(binary)
	command.Dir = dir
	command.Env = append(append(os.Environ(), "ONCEWARD_SECRET=sixteen random bytes or more"), env...)
	proctest.Start(t, command)
	await.That(t, "the program listens", func() bool { return reachable(address) })
	return "http://" + address
}

func reachable(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	_ = conn.Close() // that it could be opened is all
	return true
}
