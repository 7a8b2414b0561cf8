package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// PrometheusServer is a running Prometheus. It is safe for concurrent use.
type PrometheusServer struct {
	server
	program string
	port    int
	config  string
}

// PrometheusSample is one element of a query's result.
type PrometheusSample struct {
	Labels map[string]string
	Value  float64
}

// StartPrometheus starts a private server without data. The configuration is a text like prometheus.yml;
// file names in it must be absolute paths. The context only limits the start. The caller closes the server.
func StartPrometheus(ctx context.Context, config string) (*PrometheusServer, error) {
	programs, err := findPrometheus(thisMachine())
	if err != nil {
		return nil, err
	}
	parent, err := workspace.dir()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "prometheus-*")
	if err != nil {
		return nil, fmt.Errorf("servers: create a Prometheus: %w", err)
	}
	s := &PrometheusServer{program: programs.server, config: config}
	s.kind, s.dir, s.life = "Prometheus", dir, s
	enlist(s)
	if err := s.startSomewhere(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// choosePorts chooses a port, and writes the configuration.
func (s *PrometheusServer) choosePorts() (err error) {
	if s.port, err = freePort(); err != nil {
		return err
	}
	s.url = "http://127.0.0.1:" + strconv.Itoa(s.port)
	return os.WriteFile(s.configFile(), []byte(s.config), 0o600)
}

func (s *PrometheusServer) configFile() string { return filepath.Join(s.dir, "prometheus.yml") }

// start runs the server on its port and waits until it is ready.
func (s *PrometheusServer) start(ctx context.Context) (err error) {
	cmd := exec.Command(s.program, "--config.file="+s.configFile(), "--storage.tsdb.path="+filepath.Join(s.dir, "data"),
		"--web.listen-address=127.0.0.1:"+strconv.Itoa(s.port))
	if s.proc, err = s.run(cmd, cleanEnviron("LC_"), syscall.SIGKILL); err != nil {
		return fmt.Errorf("servers: start %s: %w", s.kind, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = await(ctx, s.kind+" is ready", func() (bool, error) {
		if s.proc.Ended() {
			return true, errors.New("it has ended")
		}
		return s.get(ctx, "/-/ready", nil) == nil, nil
	})
	if err != nil {
		return errors.Join(s.startFailure(err), s.kill())
	}
	return nil
}

// get sends a request, and decodes the JSON reply if into is not nil.
func (s *PrometheusServer) get(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if into != nil {
		return json.NewDecoder(response.Body).Decode(into)
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// Query returns the current result of a PromQL expression.
func (s *PrometheusServer) Query(ctx context.Context, expression string) ([]PrometheusSample, error) {
	var reply struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := s.get(ctx, "/api/v1/query?query="+url.QueryEscape(expression), &reply); err != nil {
		return nil, err
	}
	if reply.Status != "success" {
		return nil, fmt.Errorf("servers: Prometheus on %s: %s", expression, reply.Error)
	}
	if reply.Data.ResultType != "vector" {
		return nil, fmt.Errorf("servers: %s is a %s, not a vector", expression, reply.Data.ResultType)
	}
	var vector []struct {
		Metric map[string]string
		Value  [2]any
	}
	if err := json.Unmarshal(reply.Data.Result, &vector); err != nil {
		return nil, err
	}
	samples := make([]PrometheusSample, len(vector))
	for i, each := range vector {
		text, _ := each.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		samples[i] = PrometheusSample{Labels: each.Metric, Value: value}
	}
	return samples, nil
}

// Promtool runs the program that checks Prometheus files, and returns its output.
func Promtool(ctx context.Context, args ...string) (output string, err error) {
	programs, err := findPrometheus(thisMachine())
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, programs.promtool, args...).CombinedOutput()
	return string(out), err
}

// stop shuts the server down.
func (s *PrometheusServer) stop() error {
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
func (s *PrometheusServer) end() error { return s.kill() }

func (s *PrometheusServer) kill() error {
	running := s.proc
	s.proc = nil
	if running == nil || running.Ended() {
		return nil
	}
	return running.KillTree()
}
