package doctor_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
)

// redisUser makes a user by the line of the guide, and returns the URL with it.
func redisUser(t *testing.T, s *servers.RedisServer, more ...string) string {
	t.Helper()
	must(t, s, append([]string{
		"ACL", "SETUSER", "app", "on", ">password", "resetkeys", "~onceward:*", "resetchannels",
		"&onceward:*", "-@all",
		"+@connection", "+@read", "+@write", "+@scripting", "+@pubsub", "+@transaction", "+info", "+role", "+time",
		"+config|get", "+wait",
		"+cluster|slots", "+cluster|shards",
	}, more...)...)
	return strings.Replace(s.URL(), "redis://", "redis://app:password@", 1)
}

func must(t *testing.T, s *servers.RedisServer, command ...string) {
	t.Helper()
	if _, err := s.Do(t.Context(), command...); err != nil {
		t.Fatalf("%v: %v", command, err)
	}
}

func TestHealthyRedis(t *testing.T) {
	t.Parallel()
	s := servers.NewRedis(t)
	for name, url := range map[string]string{"the default user": s.URL(), "a user of its own": redisUser(t, s)} {
		t.Run(name, func(t *testing.T) {
			wantHealthy(t, examine(t, url, doctor.Config{}))
		})
	}
	if left, err := s.Do(t.Context(), "DBSIZE"); err != nil || left != int64(0) {
		t.Errorf("left behind: %v keys, %v", left, err)
	}
	must(t, s, "CONFIG", "SET", "appendfsync", "everysec")
	wantHealthy(t, examine(t, s.URL(), doctor.Config{}))
}

// TestCluster: a cluster is healthy until a slot is served by no one.
func TestCluster(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a cluster")
	c := servers.NewRedisCluster(t, "min-replicas-to-write 1", "cluster-node-timeout 30000")
	wantHealthy(t, examine(t, c.URL(), doctor.Config{}))
	for _, node := range c.Nodes() {
		redisUser(t, node)
	}
	own := strings.Replace(c.URL(), "redis+cluster://", "redis+cluster://app:password@", 1)
	wantHealthy(t, examine(t, own, doctor.Config{}))
	for _, node := range c.Nodes() {
		must(t, node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
		must(t, node, "CLUSTER", "DELSLOTS", "7")
	}
	for _, url := range []string{c.URL(), own} {
		wantFound(t, examine(t, url, doctor.Config{}), lie{"redis/cluster", doctor.Broken, "16383 of 16384 slots", nil})
	}
}

// TestNoCluster: the URL of a cluster with a server that is part of none is what the store refuses.
func TestNoCluster(t *testing.T) {
	t.Parallel()
	url := strings.Replace(servers.NewRedis(t).URL(), "redis://", "redis+cluster://", 1)
	wantFound(t, examine(t, strings.TrimSuffix(url, "/0"), doctor.Config{}),
		lie{"redis/primary", doctor.Broken, "is not part of a cluster", nil})
}

// TestReplicas: neither is a replica taken for the store, nor a primary for safe that does without its replicas.
func TestReplicas(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own")
	s := servers.NewRedisSentinel(t)
	wantFound(t, examine(t, s.URL(), doctor.Config{}),
		lie{"redis/replicas", doctor.Weak, "min-replicas-to-write is 0", nil})
	primary, err := s.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range s.Nodes() {
		if node != primary {
			wantFound(t, examine(t, node.URL(), doctor.Config{}),
				lie{"redis/primary", doctor.Broken, "is a replica of", []string{"redis/scripts"}})
		}
	}
	must(t, primary, "CONFIG", "SET", "min-replicas-to-write", "1")
	wantHealthy(t, examine(t, s.URL(), doctor.Config{}))
}

// TestLiesOfRedis plants what breaks promises, one at a time.
func TestLiesOfRedis(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		settings []string
		plant    func(t *testing.T, s *servers.RedisServer)
		lies     func(command []string) []string
		want     lie
		config   doctor.Config
	}{
		"a server that evicts": {
			settings: []string{"maxmemory-policy allkeys-lru"},
			want:     lie{"redis/eviction", doctor.Broken, "allkeys-lru", nil},
		},
		"keys that were evicted": {
			settings: []string{"maxmemory-policy noeviction"},
			plant: func(t *testing.T, s *servers.RedisServer) {
				for _, name := range []string{"a", "b", "c"} {
					must(t, s, "SET", name, strings.Repeat("x", 100<<10))
				}
				must(t, s, "CONFIG", "SET", "maxmemory-policy", "allkeys-random")
				must(t, s, "CONFIG", "SET", "maxmemory", "1mb")
				must(t, s, "CONFIG", "SET", "maxmemory", "0")
				must(t, s, "CONFIG", "SET", "maxmemory-policy", "noeviction")
			},
			want: lie{"redis/eviction", doctor.Weak, "has evicted", nil},
		},
		"no append-only file": {
			settings: []string{"appendonly no"},
			want:     lie{"redis/persistence", doctor.Broken, "appendonly is off", nil},
		},
		"a file that is not flushed": {
			settings: []string{"appendfsync no"},
			want:     lie{"redis/persistence", doctor.Broken, "appendfsync is no", nil},
		},
		"a file that is not flushed while it is rewritten": {
			settings: []string{"no-appendfsync-on-rewrite yes"},
			want:     lie{"redis/persistence", doctor.Weak, "no-appendfsync-on-rewrite is yes", nil},
		},
		"memory that is full": {
			plant: func(t *testing.T, s *servers.RedisServer) {
				must(t, s, "SET", "large", strings.Repeat("x", 16<<20))
				info, err := s.Info(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				used, err := strconv.Atoi(info["used_memory"])
				if err != nil {
					t.Fatal(err)
				}
				must(t, s, "CONFIG", "SET", "maxmemory", strconv.Itoa(used+used/20))
			},
			want: lie{"redis/memory", doctor.Weak, "MB are in use", nil},
		},
		"SET NX that always says yes": {
			lies: func(command []string) []string {
				return slices.DeleteFunc(command, func(word string) bool { return word == "NX" })
			},
			want: lie{"redis/exclusion", doctor.Broken, "16 of 16 who set one key at once", nil},
		},
		"a clock an hour ahead": {
			lies: func(command []string) []string {
				if command[0] == "TIME" {
					return []string{"EVAL", "local t = redis.call('TIME') return {tostring(t[1] + 3600), t[2]}", "0"}
				}
				return command
			},
			want: lie{"redis/clock", doctor.Weak, "ahead of this machine's", nil},
		},
		"messages that are swallowed": {
			lies: func(command []string) []string {
				if command[0] == "PUBLISH" {
					return []string{"PUBSUB", "NUMPAT"}
				}
				return command
			},
			want:   lie{"redis/pubsub", doctor.Weak, "did not arrive", nil},
			config: doctor.UsualArrival,
		},
		"writes that take long": {
			lies: func(command []string) []string {
				if command[0] == "SET" && !slices.Contains(command, "NX") {
					time.Sleep(300 * time.Millisecond)
				}
				return command
			},
			want:   lie{"redis/write-time", doctor.Weak, "a write takes", nil},
			config: doctor.UsualSlowWrite,
		},
		"scripts that are refused": {
			settings: []string{`rename-command EVAL ""`},
			want:     lie{"redis/scripts", doctor.Broken, "a script is refused", nil},
		},
		"values that are others": {
			lies: func(command []string) []string {
				if command[0] == "GET" {
					return []string{"ECHO", "stale"}
				}
				return command
			},
			want: lie{"redis/exclusion", doctor.Broken, "another connection reads", nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := servers.NewRedis(t, test.settings...)
			if test.plant != nil {
				test.plant(t, s)
			}
			url := s.URL()
			if test.lies != nil {
				url = redisLiar(t, url, test.lies)
			}
			wantFound(t, examine(t, url, test.config), test.want)
		})
	}
}

// TestRightsOfRedis: a user may do what the store needs, and no more.
func TestRightsOfRedis(t *testing.T) {
	t.Parallel()
	s := servers.NewRedis(t)
	wantFound(t, examine(t, redisUser(t, s, "+@all"), doctor.Config{}),
		lie{"redis/privileges", doctor.Weak, "also FLUSHALL", nil})
	wantFound(t, examine(t, redisUser(t, s, "-@scripting"), doctor.Config{}),
		lie{"redis/scripts", doctor.Broken, "NOPERM", nil})
	wantFound(t, examine(t, redisUser(t, s, "-@pubsub"), doctor.Config{}),
		lie{"redis/pubsub", doctor.Weak, "NOPERM", nil})
	report := examine(t, redisUser(t, s, "-config|get"), doctor.Config{})
	if left := report.NotChecked(); len(left) != 1 || left[0].Check != "redis/persistence" || len(report.Findings()) > 0 {
		t.Errorf("a server that does not show its settings:\n%s", text(report))
	}
}
