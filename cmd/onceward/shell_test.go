package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/proc/proctest"
)

// curl does what the real one does for the flags that the demo uses, so that the tests need none.
func curl(args []string, out io.Writer) int {
	method, url, body, shown := "", "", "", false
	header := make(http.Header)
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-s":
		case "-i":
			shown = true
		case "-X":
			i++
			method = args[i]
		case "-d":
			i++
			body = args[i]
		case "-H":
			i++
			name, value, _ := strings.Cut(args[i], ": ")
			header.Set(name, value)
		default:
			url = args[i]
		}
	}
	if method == "" && body != "" {
		method = http.MethodPost
	}
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 3
	}
	request.Header = header
	response, err := newClient().Do(request)
	if err != nil {
		return 52
	}
	defer response.Body.Close()
	if shown {
		fmt.Fprintf(out, "HTTP/1.1 %s\n", response.Status)
		_ = response.Header.Write(out)
		fmt.Fprintln(out)
	}
	_, _ = io.Copy(out, response.Body)
	return 0
}

// shell is where a user types what the demo says.
type shell struct{ *proctest.Process }

func openShell(t *testing.T) *shell {
	t.Helper()
	bin := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", runAsCurl, os.Args[0])
	if err := os.WriteFile(filepath.Join(bin, "curl"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("sh")
	command.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	return &shell{proctest.Start(t, command)}
}

// run types a line, and returns what it printed.
func (s *shell) run(t *testing.T, line string) string {
	t.Helper()
	const end = "== end of the line =="
	s.Tell(line + "\necho; echo '" + end + "'")
	var printed strings.Builder
	for {
		line := s.Hear("")
		if line == end {
			return printed.String()
		}
		printed.WriteString(line + "\n")
	}
}

var numbered = regexp.MustCompile(`(?m)^\d+\. .*\n   (.*)$`)

// steps are the lines to type, of what the demo printed.
func (s *server) steps(t *testing.T, want int) []string {
	t.Helper()
	var lines []string
	for _, found := range numbered.FindAllStringSubmatch(s.greeted, -1) {
		lines = append(lines, found[1])
	}
	if len(lines) != want {
		t.Fatalf("the demo printed %d lines to type, want %d:\n%s", len(lines), want, s.greeted)
	}
	return lines
}
