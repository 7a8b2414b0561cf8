package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/internal/servers"
)

// The demo is tested as a user runs it: as a process of its own, over HTTP, and killed where it hurts. The test binary
// is that process when it is told so, and also the curl that the demo tells users to type.
const (
	runAsDemo = "ONCEWARD_TEST_RUN"
	runAsCurl = "ONCEWARD_TEST_CURL"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(runAsCurl) != "":
		os.Exit(curl(os.Args[1:], os.Stdout))
	case os.Getenv(runAsDemo) != "":
		main()
	default:
		code := servers.Main(m)
		_ = os.RemoveAll(programDir()) // what is left there is the system's to clear
		os.Exit(code)
	}
}

// programDir is where the program of this run of the tests is.
func programDir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("onceward-test-%d", os.Getpid()))
}

// builtProgram builds the program as users have it, once: operators' commands are many short processes, and the test
// binary takes four times as long to start under the race detector.
var builtProgram = sync.OnceValues(func() (string, error) {
	program := filepath.Join(programDir(), "onceward")
	said, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the program: %w: %s", err, said)
	}
	return program, nil
})

// demoProcess prepares a demo in a process of its own. Its temporary files are in a directory that is looked at
// afterwards.
func demoProcess(t *testing.T, args ...string) (command *exec.Cmd, temporary string) {
	t.Helper()
	temporary = t.TempDir()
	command = proc.Self(runAsDemo, "1", append([]string{"demo"}, args...)...)
	command.Env = append(command.Env, "TMPDIR="+temporary)
	return command, temporary
}

// runDemo runs a demo to its end, and sees to it that it leaves nothing behind.
func runDemo(t *testing.T, args ...string) proctest.Result {
	t.Helper()
	command, temporary := demoProcess(t, args...)
	result := proctest.Run(t, command)
	wantEmpty(t, temporary)
	return result
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// server is a demo that only serves.
type server struct {
	*proctest.Process
	url     string
	dir     string
	greeted string
}

// startDemo starts a demo that only serves, and waits until it has said what to try.
func startDemo(t *testing.T, dir string, args ...string) *server {
	t.Helper()
	command, _ := demoProcess(t, append([]string{"--no-load", "--addr", "127.0.0.1:0", "--dir", dir}, args...)...)
	s := &server{Process: proctest.Start(t, command), dir: dir}
	for {
		line := s.Hear("")
		s.greeted += line + "\n"
		if url, found := strings.CutPrefix(line, "Listening on "); found {
			s.url = url
		}
		if strings.Contains(line, "Ctrl-C") {
			return s
		}
	}
}

// kill ends the process as a power cut would.
func (s *server) kill() { _ = s.Kill() }

// ledger reads what the provider has done.
func (s *server) ledger(t *testing.T) provider.Ledger {
	t.Helper()
	ledger, err := provider.ReadLedger(filepath.Join(s.dir, "ledger.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return ledger
}

// reply is what a client got.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

// newClient opens a connection for each request, so that the transport repeats none by itself.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: await.Limit}
}

func (s *server) send(method, path, token, key, body string) reply {
	request, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := newClient().Do(request)
	if err != nil {
		return reply{err: err}
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return reply{status: response.StatusCode, header: response.Header, body: string(content), err: err}
}

func (s *server) pay(key, body string) reply { return s.send("POST", "/payments", "alice", key, body) }

// must sends a request that has to be answered.
func (s *server) must(t *testing.T, method, path, token, key, body string) reply {
	t.Helper()
	r := s.send(method, path, token, key, body)
	if r.err != nil {
		t.Fatalf("%s %s: %v", method, path, r.err)
	}
	return r
}

// charged makes a payment, and returns its path when the provider has charged it.
func (s *server) charged(t *testing.T, key string) (path string) {
	t.Helper()
	r := s.must(t, "POST", "/payments", "alice", key, payment)
	path = r.header.Get("Location")
	await.That(t, "the payment is charged", func() bool {
		return strings.Contains(s.must(t, "GET", path, "alice", "", "").body, `"state":"charged"`)
	})
	return path
}

const payment = `{"customer":"c1","amount":1999,"currency":"EUR"}`
