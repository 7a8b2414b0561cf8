package servers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// dynamodbVariable is the environment variable with the endpoint of a server to use instead
// of starting one, and dynoxideVariable the environment variable with the program to start.
const (
	dynamodbVariable = "ONCEWARD_TEST_DYNAMODB"
	dynoxideVariable = "ONCEWARD_TEST_DYNOXIDE"
)

// dynoxideVersion is the version of Dynoxide that npm installs. It is one program, without installation scripts.
const dynoxideVersion = "1.2.1"

// DynamoDBServer is a running server with DynamoDB's protocol: Dynoxide, which stores its items in SQLite. It neither
// throttles nor loses replies: a client that needs such faults needs a faulty transport. It is safe for concurrent use.
type DynamoDBServer struct {
	server
	program string
	port    int
	// durable means that acknowledged data survive the end of the process.
	durable bool
}

// StartDynamoDB starts a private server without tables. Its items survive the end of its process:
// see Kill and Restart. The context only limits the start. The caller closes the server.
func StartDynamoDB(ctx context.Context) (*DynamoDBServer, error) { return startDynamoDB(ctx, true) }

// StartDynamoDBInMemory starts a server like StartDynamoDB, but its items do not survive its
// process, so that measurements do not wait for a disk, which the service does not have.
func StartDynamoDBInMemory(ctx context.Context) (*DynamoDBServer, error) {
	return startDynamoDB(ctx, false)
}

func startDynamoDB(ctx context.Context, durable bool) (*DynamoDBServer, error) {
	program, err := findDynoxide(ctx, thisMachine())
	if err != nil {
		return nil, err
	}
	parent, err := workspace.dir()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "dynamodb-*")
	if err != nil {
		return nil, fmt.Errorf("servers: create a DynamoDB: %w", err)
	}
	s := &DynamoDBServer{program: program, durable: durable}
	s.kind, s.dir, s.life = "DynamoDB", dir, s
	enlist(s)
	if err := s.startSomewhere(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// findDynoxide returns the program in ONCEWARD_TEST_DYNOXIDE, or else the program that
// npm installs by its name and version into the user's cache, once for all processes.
func findDynoxide(ctx context.Context, m machine) (string, error) {
	if program := os.Getenv(dynoxideVariable); program != "" {
		if !isProgram(program) {
			return "", fmt.Errorf("%s holds %q, which is no program", dynoxideVariable, program)
		}
		return program, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	name := "@dynoxide/" + runtime.GOOS + "-" + strings.ReplaceAll(runtime.GOARCH, "amd64", "x64")
	dir := filepath.Join(cache, "onceward", "dynoxide-"+dynoxideVersion)
	program := filepath.Join(dir, "node_modules", filepath.FromSlash(name), "dynoxide")
	return program, withFileLock(dir+".lock", func() error {
		if isProgram(program) {
			return nil
		}
		return fetchDynoxide(ctx, m, dir, program, name+"@"+dynoxideVersion)
	})
}

// fetchDynoxide installs the package into the directory.
func fetchDynoxide(ctx context.Context, m machine, dir, program, name string) error {
	npm, err := m.lookPath("npm")
	if err != nil {
		return fmt.Errorf("the tests need npm to fetch Dynoxide, a server that speaks DynamoDB's protocol, "+
			"and it is not installed here. On Debian or Ubuntu, as root:\n\n    %s\n\n"+
			"Or name the program in %s, or a server that is already there in %s", npmInstall, dynoxideVariable, dynamodbVariable)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	args := []string{"install", "--prefix", dir, "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", name}
	cmd := exec.CommandContext(ctx, npm, args...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm cannot install %s: %w\n%s\nName the program in %s, or a server that is already there in %s",
			name, errors.Join(err, ctx.Err()), out, dynoxideVariable, dynamodbVariable)
	}
	return os.Chmod(program, 0o755)
}

// withFileLock calls do while it holds a lock that excludes all other processes.
func withFileLock(path string, do func() error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close() // closing also releases the lock
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	return do()
}

// choosePorts finds a port to listen on.
func (s *DynamoDBServer) choosePorts() (err error) {
	s.port, err = freePort()
	s.url = "http://127.0.0.1:" + strconv.Itoa(s.port)
	return err
}

// start runs the server on its port and waits until it answers.
func (s *DynamoDBServer) start(ctx context.Context) (err error) {
	args := []string{"--host", "127.0.0.1", "--port", strconv.Itoa(s.port)}
	if s.durable {
		args = append(args, "--db-path", filepath.Join(s.dir, "items.db"))
	}
	if s.proc, err = s.run(exec.Command(s.program, args...), os.Environ(), syscall.SIGKILL); err != nil {
		return fmt.Errorf("servers: start DynamoDB: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err = s.awaitReady(ctx); err != nil {
		return errors.Join(s.startFailure(err), s.kill())
	}
	return nil
}

// awaitReady waits until the server answers. A server whose port is
// taken ends, so that another server on the port is soon detected.
func (s *DynamoDBServer) awaitReady(ctx context.Context) error {
	return await(ctx, "DynamoDB answers", func() (bool, error) {
		if s.proc.Ended() {
			return true, errors.New("it has ended")
		}
		return s.answers(ctx) && !s.proc.Ended(), nil
	})
}

// answers reports whether the server lists its tables.
func (s *DynamoDBServer) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader("{}"))
	if err != nil {
		return false
	}
	request.Header.Set("X-Amz-Target", "DynamoDB_20120810.ListTables")
	request.Header.Set("Content-Type", "application/x-amz-json-1.0")
	request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/dynamodb/aws4_request, "+
		"SignedHeaders=host;x-amz-date, Signature=none")
	request.Header.Set("X-Amz-Date", time.Now().UTC().Format("20060102T150405Z"))
	request.Close = true // no connection is left behind
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// Addr returns the host and the port for clients.
func (s *DynamoDBServer) Addr() string { return strings.TrimPrefix(s.url, "http://") }

// stop shuts the server down.
func (s *DynamoDBServer) stop() error {
	if s.proc == nil {
		return nil
	}
	if err := s.stopBy(syscall.SIGTERM); err != nil {
		return errors.Join(err, s.kill())
	}
	s.proc = nil
	return nil
}

// end kills the server, which leaves nothing outside of its directory.
func (s *DynamoDBServer) end() error { return s.kill() }

func (s *DynamoDBServer) kill() error {
	running := s.proc
	s.proc = nil
	if running == nil || running.Ended() {
		return nil
	}
	return running.KillTree()
}
