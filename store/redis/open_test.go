package redis_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// told opens a store and returns what was logged.
func told(t *testing.T, url string, options ...redis.Option) (string, error) {
	t.Helper()
	var log bytes.Buffer
	s, err := redis.Open(t.Context(), url, append(options, redis.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))...)
	if err == nil {
		must(t, s.Close())
	}
	return log.String(), err
}

func set(t *testing.T, server *servers.RedisServer, settings ...string) {
	t.Helper()
	_, err := server.Do(t.Context(), append([]string{"CONFIG", "SET"}, settings...)...)
	must(t, err)
}

// TestSettings opens stores on servers that may lose records: all of it is said once, and what evicts is refused.
func TestSettings(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	for _, c := range []struct {
		settings []string
		says     string // what is logged; nothing at all if empty
	}{
		{[]string{"appendonly", "yes", "appendfsync", "always"}, ""},
		{[]string{"appendonly", "yes", "appendfsync", "everysec"}, "appendfsync is everysec"},
		{[]string{"appendonly", "yes", "appendfsync", "no"}, "appendfsync is no"},
		{[]string{"appendonly", "no"}, "appendonly is off"},
		{[]string{"appendonly", "yes", "appendfsync", "always"}, ""},
	} {
		set(t, server, c.settings...)
		log, err := told(t, server.URL())
		must(t, err)
		if n := strings.Count(log, "level=WARN"); !strings.Contains(log, c.says) || (n == 0) != (c.says == "") || n > 1 {
			t.Errorf("%v: the logger was told %q, want %q once", c.settings, log, c.says)
		}
	}
	for _, policy := range []string{"allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"} {
		set(t, server, "maxmemory-policy", policy)
		if _, err := told(t, server.URL()); err == nil || !strings.Contains(err.Error(), policy) {
			t.Errorf("a server with maxmemory-policy %s: %v, want a refusal that names it", policy, err)
		}
		log, err := told(t, server.URL(), redis.WithEviction())
		if err != nil || !strings.Contains(log, policy) {
			t.Errorf("a user who insists on maxmemory-policy %s got %v, and the log %q", policy, err, log)
		}
	}
	if _, err := told(t, server.URL(), redis.WithEviction(), redis.WithAOFAcks(0, time.Second)); err == nil ||
		!strings.Contains(err.Error(), "7.2") {
		t.Errorf("WAITAOF on a server without it: %v", err)
	}
}

// TestHiddenSettings opens a store for a user who may not see the configuration, and for one who may do nothing.
func TestHiddenSettings(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t, "maxmemory-policy allkeys-lru")
	for _, user := range [][]string{
		{"ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-config"},
		{"ACL", "SETUSER", "nobody", "on", ">secret", "~*", "&*", "+@all", "-evalsha", "-eval"},
	} {
		_, err := server.Do(t.Context(), user...)
		must(t, err)
	}
	as := func(user, password string) string {
		u, err := url.Parse(server.URL())
		must(t, err)
		u.User = url.UserPassword(user, password)
		return u.String()
	}
	if _, err := told(t, as("app", "secret")); err == nil || !strings.Contains(err.Error(), "allkeys-lru") {
		t.Errorf("an evicting server that hides its configuration: %v", err)
	}
	set(t, server, "maxmemory-policy", "noeviction")
	log, err := told(t, as("app", "secret"))
	if err != nil || !strings.Contains(log, "CONFIG GET is refused") {
		t.Errorf("a server that hides its configuration: %v, and the log %q", err, log)
	}
	_, err = told(t, as("app", "wrong"))
	if !errors.Is(err, store.ErrUnavailable) || strings.Contains(err.Error(), "wrong") {
		t.Errorf("a wrong password: %v", err)
	}
	_, err = told(t, as("nobody", "secret"))
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), `may not run scripts on keys that begin with "onceward:"`) {
		t.Errorf("a user without permission: %v", err)
	}
}

// TestSettingsChange: a setting that Open would have refused is logged when it changes later.
func TestSettingsChange(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	var log bytes.Buffer
	s, err := redis.Open(t.Context(), server.URL(), redis.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	must(t, err)
	defer s.Close()
	set(t, server, "maxmemory-policy", "allkeys-lru", "appendfsync", "everysec")
	for range 2 {
		_, err := s.Sweep(t.Context(), 10)
		must(t, err)
	}
	for _, want := range []string{"level=ERROR", "maxmemory-policy allkeys-lru", "appendfsync is everysec"} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("the logger was told %q, want %q once", log.String(), want)
		}
	}
}

// TestLeastPermissions uses a store as a user who may do no more than the package documentation asks for.
func TestLeastPermissions(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	_, err := server.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~onceward:*", "&onceward:*", "+@read", "+@write",
		"+@scripting", "+@pubsub", "+@connection", "+@transaction", "+info", "+role", "+time", "+wait", "+cluster|slots",
		"+cluster|shards", "+config|get")
	must(t, err)
	u, err := url.Parse(server.URL())
	must(t, err)
	u.User = url.UserPassword("app", "secret")
	log, err := told(t, u.String())
	if err != nil || log != "" {
		t.Fatalf("open: %v, and the log %q", err, log)
	}
	s := open(t, u.String())
	c := booked(t, s, "key")
	waited := make(chan error, 1)
	go func() { waited <- s.Wait(t.Context(), c.ID, c.Attempt) }()
	must(t, s.Checkpoint(t.Context(), c, store.Checkpoint{Point: "charged"}))
	must(t, s.Extend(t.Context(), c, time.Minute))
	must(t, s.Abandon(t.Context(), c, "not known"))
	must(t, <-waited)
	_, err = s.Sweep(t.Context(), 10)
	must(t, err)
	must(t, s.ResolveCompleted(t.Context(), c, paid("found")))
	_, err = s.AddExternalEvent(t.Context(), store.ExternalEvent{Source: "psp", EventID: "1", Subject: "ch_1"})
	must(t, err)
	must(t, s.AddAudit(t.Context(), store.AuditEntry{ID: c.ID, Action: "look"}))
	must(t, s.AddLateCompletion(t.Context(), store.LateCompletion{Claim: c, Response: paid("late").Response}))
	stats, err := s.Stats(t.Context())
	if err != nil || stats.Records[store.StateCompleted] != 1 {
		t.Errorf("statistics: %+v, %v", stats, err)
	}
	for _, purge := range []func(context.Context, time.Duration, int) (int, error){s.PurgeAudit, s.PurgeExternalEvents} {
		if n, err := purge(t.Context(), 0, 10); n != 1 || err != nil {
			t.Errorf("purged %d, %v", n, err)
		}
	}
}

func TestReplicaIsRefused(t *testing.T) {
	t.Parallel()
	primary, replica := servers.NewRedis(t), servers.NewRedis(t)
	host, port, _ := strings.Cut(primary.Addr(), ":")
	_, err := replica.Do(t.Context(), "REPLICAOF", host, port)
	must(t, err)
	if _, err := told(t, replica.URL()); err == nil || !strings.Contains(err.Error(), "replica") {
		t.Errorf("a replica: %v, want a refusal", err)
	}
}

func TestWrongKindOfServer(t *testing.T) {
	t.Parallel()
	single := servers.Redis(t)
	if _, err := told(t, "redis+cluster://"+single.Addr()); err == nil || !strings.Contains(err.Error(), "cluster") {
		t.Errorf("a single server as a cluster: %v", err)
	}
	node := servers.SharedRedisCluster(t).Nodes()[0]
	if _, err := told(t, "redis://"+node.Addr()); err == nil || !strings.Contains(err.Error(), "redis+cluster://") {
		t.Errorf("a node of a cluster as a single server: %v", err)
	}
}

// TestFullMemory fills a server that evicts nothing: reservations are refused, what was executed is stored, what is stored
// is replayed, and operators act.
func TestFullMemory(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	s := open(t, server.URL())
	c, running := booked(t, s, "before"), booked(t, s, "running")
	_, err := s.Complete(t.Context(), c, paid("stored"))
	must(t, err)
	set(t, server, "maxmemory", "1mb")
	_, err = s.Reserve(t.Context(), booking("full"))
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "maxmemory") {
		t.Errorf("a reservation on a full server: %v", err)
	}
	if rec := look(t, s, "full"); rec.State != store.StateNone {
		t.Errorf("it left a record that is %s", rec.State)
	}
	if v, err := s.Reserve(t.Context(), booking("before")); err != nil || v.Decision != store.DecisionReplay {
		t.Errorf("a replay on a full server: %s, %v", v.Decision, err)
	}
	must(t, s.Extend(t.Context(), running, time.Minute))
	if _, err := s.Complete(t.Context(), running, paid("done")); err != nil {
		t.Errorf("the answer of work that was done, on a full server: %v", err)
	}
	// I16: an operator can act, which is written down first; S6: what came too late is kept.
	must(t, s.AddAudit(t.Context(), store.AuditEntry{ID: c.ID, Actor: "bob", Action: "bust"}))
	must(t, s.Bust(t.Context(), c.ID, false))
	must(t, s.AddLateCompletion(t.Context(), store.LateCompletion{Claim: running, Response: paid("late").Response}))
}

func TestWrongURLs(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "localhost:6379", "http://localhost", "redis://", "redis://a:1,b:2", "redis://localhost/one", "redis://localhost/-1",
		"redis+cluster://a:1,b:2/3", "redis+sentinel://a:1", "redis://localhost?wrong=hunter2", "redis://user:hunter2%zz@localhost",
	} {
		_, err := redis.Open(t.Context(), text)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v, want an error without a password", text, err)
		}
	}
	for _, option := range []redis.Option{
		redis.WithPrefix(""), redis.WithPrefix("a{b}"), redis.WithPrefix("a*"), redis.WithReplicas(-1, time.Second),
		redis.WithReplicas(1, 0), redis.WithReplicas(1, time.Hour),
	} {
		if _, err := redis.Open(t.Context(), "redis://127.0.0.1:1", option); err == nil || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("an option that makes no sense: %v", err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{t.Context(), gone} {
		if _, err := redis.Open(ctx, "redis://127.0.0.1:1"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("no server: %v, want ErrUnavailable", err)
		}
	}
}

// TestClientOption: a tool connects as the store does, and a URL that cannot be read is not repeated.
func TestClientOption(t *testing.T) {
	t.Parallel()
	option, err := redis.ClientOption("redis+cluster://app:secret@a:1,b")
	if err != nil || !slices.Equal(option.InitAddress, []string{"a:1", "b:6379"}) || option.Username != "app" {
		t.Errorf("the option is %+v (%v)", option, err)
	}
	if _, err := redis.ClientOption("http://app:secret@a:1"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("another URL: %v", err)
	}
}
