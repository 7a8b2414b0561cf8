package servers

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// redisGroup is a group of servers that belong together.
type redisGroup struct {
	// nodes contain data, and sentinels watch them.
	nodes, sentinels []*RedisServer
}

func (g *redisGroup) all() []*RedisServer {
	return append(g.nodes[:len(g.nodes):len(g.nodes)], g.sentinels...)
}

// startAll starts servers at the same time, on their configured ports.
func startAll(ctx context.Context, members []*RedisServer) error {
	errs := make([]error, len(members))
	var starting sync.WaitGroup
	for i, s := range members {
		starting.Go(func() { errs[i] = s.control(func() error { return s.start(ctx) }) })
	}
	starting.Wait()
	return errors.Join(errs...)
}

// retryPorts starts several servers, and repeats the start if another process has taken one of the ports.
func retryPorts[T any](start func() (T, error)) (made T, err error) {
	for range portTries {
		if made, err = start(); err == nil || !errors.Is(err, errPortTaken) {
			return made, err
		}
	}
	return made, err
}

// listURL returns a URL with all of the servers.
func listURL(scheme string, members []*RedisServer, path string) string {
	addresses := make([]string, len(members))
	for i, s := range members {
		addresses[i] = "127.0.0.1:" + strconv.Itoa(s.knownPort())
	}
	return scheme + "://" + strings.Join(addresses, ",") + path
}

// Nodes returns the servers with data, running or not. Their order does not change when they change their roles.
func (g *redisGroup) Nodes() []*RedisServer { return g.nodes }

// Name returns a name that no other test uses: the servers may be shared.
func (g *redisGroup) Name(t testing.TB) string {
	t.Helper()
	return uniqueName(t.Name())
}

// AwaitReplicas waits until all running replicas follow a primary, and have what it had written at the
// time of the call, if it is running. A replica that never did so is not promoted when its primary dies.
func (g *redisGroup) AwaitReplicas(ctx context.Context) error {
	written := make(map[string]int64) // by the ports of the primaries
	for _, s := range g.nodes {
		if info, err := s.Info(ctx); err == nil && info["role"] == "master" {
			written[strconv.Itoa(s.knownPort())], _ = strconv.ParseInt(info["master_repl_offset"], 10, 64)
		}
	}
	return await(ctx, "all replicas follow their primaries", func() (bool, error) {
		for _, s := range g.nodes {
			if s.Runs() && !follows(ctx, s, written) {
				return false, nil
			}
		}
		return true, nil
	})
}

// follows reports whether a node is a primary, or a replica that has what its primary has written.
func follows(ctx context.Context, s *RedisServer, written map[string]int64) bool {
	info, err := s.Info(ctx)
	if err != nil || info["role"] == "master" {
		return err == nil
	}
	has, _ := strconv.ParseInt(info["slave_repl_offset"], 10, 64)
	return info["master_link_status"] == "up" && has >= written[info["master_port"]]
}

// Close ends all servers permanently and removes their data.
func (g *redisGroup) Close() error {
	var errs []error
	for _, s := range g.all() {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// closeWith closes all servers at the end of the test, and shows their logs if the test has failed.
func (g *redisGroup) closeWith(t testing.TB, all io.Closer) {
	t.Cleanup(func() {
		for _, s := range g.all() {
			if t.Failed() {
				t.Logf("the log of %s at %s:\n%s", s.kind, s.Addr(), lastLines(s.Log(), 40))
			}
		}
		if err := all.Close(); err != nil {
			t.Errorf("close the servers: %v", err)
		}
	})
}

// lastLines returns the last lines of a text.
func lastLines(text string, most int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "")
}
