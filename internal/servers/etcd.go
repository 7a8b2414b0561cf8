package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// EtcdServer is a running etcd with one member. It is safe for concurrent use.
type EtcdServer struct {
	server
	program    string
	port, peer int
}

// startEtcd starts a private server without data.
func startEtcd(ctx context.Context, program string) (*EtcdServer, error) {
	parent, err := workspace.dir()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "etcd-*")
	if err != nil {
		return nil, fmt.Errorf("servers: create an etcd: %w", err)
	}
	s := &EtcdServer{program: program}
	s.kind, s.dir, s.life = "etcd", dir, s
	enlist(s)
	if err := s.startSomewhere(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// choosePorts chooses ports for clients and for other members, which do not exist.
func (s *EtcdServer) choosePorts() (err error) {
	if s.peer, err = freePort(); err != nil {
		return err
	}
	s.port, err = freePort()
	s.url = "http://127.0.0.1:" + strconv.Itoa(s.port)
	return err
}

// Addr returns the host and the port for clients.
func (s *EtcdServer) Addr() string { return strings.TrimPrefix(s.url, "http://") }

// start runs the server on its ports and waits until it is healthy.
func (s *EtcdServer) start(ctx context.Context) (err error) {
	peers := "http://127.0.0.1:" + strconv.Itoa(s.peer)
	cmd := exec.Command(s.program, "--enable-v2", "--name", "tests", "--data-dir", filepath.Join(s.dir, "data"),
		"--listen-client-urls", s.url, "--advertise-client-urls", s.url,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "tests="+peers)
	if s.proc, err = s.run(cmd, cleanEnviron("ETCD_"), syscall.SIGKILL); err != nil {
		return fmt.Errorf("servers: start etcd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = await(ctx, "etcd is healthy", func() (bool, error) {
		if s.proc.Ended() {
			return true, errors.New("it has ended")
		}
		health, err := get(ctx, s.url+"/health")
		return err == nil && strings.Contains(health, `"true"`), nil
	})
	if err != nil {
		return errors.Join(s.startFailure(err), s.kill())
	}
	return nil
}

// get returns a page, which must exist.
func get(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	request.Close = true // no connection is left behind
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return string(text), err
}

func (s *EtcdServer) stop() error {
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
func (s *EtcdServer) end() error { return s.kill() }

func (s *EtcdServer) kill() error {
	running := s.proc
	s.proc = nil
	if running == nil || running.Ended() {
		return nil
	}
	return running.KillTree()
}
