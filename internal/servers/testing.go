package servers

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/nightly"
)

// UnlessAllStores returns the groups of the conformance suite to run for one of many combinations of stores: the given
// groups, or all groups in make test-all. All groups for every combination would take too long for each change.
func UnlessAllStores(groups ...string) []string { return nightly.Either(nil, groups) }

// FreePort returns a port of the loopback interface on which nothing listens, for what a test starts there repeatedly.
// It lies below the ports of outgoing connections, none of which takes it while nothing listens there.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Postgres returns the server that all tests of this process share: the one whose URL is in ONCEWARD_TEST_POSTGRES, or
// a private one, which is started by the first test that asks. The test fails if there is none. Each test works in a
// schema of its own: see Schema.
func Postgres(t testing.TB) *PostgresServer {
	t.Helper()
	s, err := sharedPostgres()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// NewPostgres starts a server for this test alone, with further settings like "fsync=off", and closes it at the end. It
// is for tests that kill, stop or pause it, or need other settings; the others share the one of Postgres.
func NewPostgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	s, err := StartPostgres(t.Context(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	s.closeWith(t)
	return s
}

// RabbitMQ returns the broker that all tests of this process share: the one whose URL is in ONCEWARD_TEST_RABBITMQ, or
// a private one, which is started by the first test that asks. The test fails if there is none. Each test works with
// names of its own: see Name.
func RabbitMQ(t testing.TB) *RabbitMQServer {
	t.Helper()
	s, err := sharedRabbitMQ()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// NewRabbitMQ starts a broker for this test alone, and closes it at the end. It is for tests that kill, stop or pause
// it; the others share the one of RabbitMQ.
func NewRabbitMQ(t testing.TB) *RabbitMQServer {
	t.Helper()
	s, err := StartRabbitMQ(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.closeWith(t)
	return s
}

// NewPrometheus starts a server for this test, with a configuration like prometheus.yml,
// and closes it at the end. The test fails if Prometheus is not installed.
func NewPrometheus(t testing.TB, config string) *PrometheusServer {
	t.Helper()
	s, err := StartPrometheus(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	s.closeWith(t)
	return s
}

// Redis returns the server that all tests of this process share: the one whose URL is in ONCEWARD_TEST_REDIS, or a
// private one, which is started by the first test that asks. The test fails if there is none. Each test works with keys
// of its own: see Prefix.
func Redis(t testing.TB) *RedisServer {
	t.Helper()
	s, err := sharedRedis()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// NewRedis starts a server for this test alone, with further settings like "appendfsync no", and closes it at the end.
// It is for tests that kill, stop or pause it, or need other settings; the others share the one of Redis.
func NewRedis(t testing.TB, settings ...string) *RedisServer {
	t.Helper()
	s, err := StartRedis(t.Context(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	s.closeWith(t)
	return s
}

// SharedRedisCluster returns the cluster that all tests of this process share, for tests that do not break it. It is
// started by the first test that asks. Each test works with keys of its own: see Name.
func SharedRedisCluster(t testing.TB) *RedisCluster {
	t.Helper()
	c, err := sharedRedisCluster()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// NewRedisCluster starts a cluster for this test alone, and closes it at the end. It is for tests that break it; the
// others share the one of SharedRedisCluster.
func NewRedisCluster(t testing.TB, settings ...string) *RedisCluster {
	t.Helper()
	c, err := StartRedisCluster(t.Context(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	c.closeWith(t, c)
	return c
}

// NewProxiedRedisCluster starts a cluster like NewRedisCluster, with a proxy before each node.
func NewProxiedRedisCluster(t testing.TB, settings ...string) *RedisCluster {
	t.Helper()
	c, err := StartProxiedRedisCluster(t.Context(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	c.closeWith(t, c)
	return c
}

// NewRedisSentinel starts a primary with a replica and three sentinels for this test alone, and closes them at the end.
func NewRedisSentinel(t testing.TB, settings ...string) *RedisSentinel {
	t.Helper()
	r, err := StartRedisSentinel(t.Context(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	r.closeWith(t, r)
	return r
}

// MariaDB returns the server that all tests of this process share: the one whose URL is in ONCEWARD_TEST_MARIADB, or a
// private one, which is started by the first test that asks. The test fails if there is none. Each test works in a
// database of its own: see Database.
func MariaDB(t testing.TB) *MariaDBServer {
	t.Helper()
	s, err := sharedMariaDB()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// NewMariaDB starts a server for this test alone, with further settings like "lock-wait-timeout=5", and closes it at
// the end. It is for tests that kill, stop or pause it, or need other settings; the others share the one of MariaDB.
func NewMariaDB(t testing.TB, settings ...string) *MariaDBServer {
	t.Helper()
	s, err := StartMariaDB(t.Context(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	s.closeWith(t)
	return s
}

// DynamoDB returns the server that all tests of this process share: the one whose endpoint is in
// ONCEWARD_TEST_DYNAMODB, or a private one, which is started by the first test that asks. The test fails if there is
// none. Each test works with a table of its own: see Name.
func DynamoDB(t testing.TB) *DynamoDBServer {
	t.Helper()
	s, err := sharedDynamoDB()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// NewDynamoDB starts a server for this test alone, whose items survive Kill, and closes it at the end. The others share
// the one of DynamoDB.
func NewDynamoDB(t testing.TB) *DynamoDBServer {
	t.Helper()
	s, err := StartDynamoDB(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.closeWith(t)
	return s
}

// SharedGalera returns the cluster that all tests of this process share, for tests that do not break it. It is started
// by the first test that asks. Each test works in a database of its own: see Database.
func SharedGalera(t testing.TB) *GaleraCluster {
	t.Helper()
	c, err := sharedGalera()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// NewGalera starts a cluster for this test alone, and closes it at the end. It is for tests that break it; the others
// share the one of SharedGalera.
func NewGalera(t testing.TB, settings ...string) *GaleraCluster {
	t.Helper()
	c, err := StartGalera(t.Context(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	c.closeWith(t)
	return c
}

// closeWith closes the server at the end of the test, and shows its log if the test has failed.
func (s *server) closeWith(t testing.TB) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of %s:\n%s", s.kind, s.Log())
		}
		if err := s.Close(); err != nil {
			t.Errorf("close %s: %v", s.kind, err)
		}
	})
}

// Shared reports whether the server outlives the tests that use it, so that each test must remove what it creates.
func (s *server) Shared() bool { return s.shared }

// Name returns a name that no other test uses, on any machine: the server may be shared. It needs
// no quotes in SQL, and begins with the name of the test, for people who inspect the server.
func (s *server) Name(t testing.TB) string {
	t.Helper()
	return uniqueName(t.Name())
}

func uniqueName(test string) string {
	const most = 30
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(test))
	return strings.ToLower(plain[:min(len(plain), most)] + "_" + rand.Text())
}

// Schema creates a schema for this test. It is removed with the server, or
// with the database that this process has created on a server that stays.
func (s *PostgresServer) Schema(t testing.TB) (name string) {
	t.Helper()
	name = s.Name(t)
	if err := s.Exec(t.Context(), "CREATE SCHEMA "+name); err != nil {
		t.Fatalf("create a schema: %v", err)
	}
	return name
}

// SchemaURL creates a schema like Schema, and returns a URL whose connections work in it.
func (s *PostgresServer) SchemaURL(t testing.TB) string {
	t.Helper()
	address, err := withParameter(s.url, "search_path", s.Schema(t))
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// Database creates a database for this test, and returns its name. On
// a server that stays, it is removed with its contents at the end.
func (s *MariaDBServer) Database(t testing.TB) (name string) {
	t.Helper()
	name = s.Name(t)
	if err := s.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatalf("create a database: %v", err)
	}
	if s.stays {
		t.Cleanup(func() { s.dropDatabase(t, name) })
	}
	return name
}

// dropDatabase removes a database. It does not wait forever if a transaction of the test is still open.
func (s *MariaDBServer) dropDatabase(t testing.TB, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if err := s.Exec(ctx, "SET lock_wait_timeout = 60; DROP DATABASE IF EXISTS "+name); err != nil {
		t.Errorf("drop the database of the test: %v", err)
	}
}

// DatabaseURL creates a database like Database, and returns its URL.
func (s *MariaDBServer) DatabaseURL(t testing.TB) string {
	t.Helper()
	parsed, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	parsed.Path = "/" + s.Database(t)
	return parsed.String()
}

// Prefix returns a prefix for all keys of this test. On a server that stays, these keys are removed at the end.
func (s *RedisServer) Prefix(t testing.TB) string {
	t.Helper()
	prefix := s.Name(t) + ":"
	if s.stays {
		t.Cleanup(func() {
			if err := s.dropKeys(context.Background(), "*"+prefix+"*"); err != nil {
				t.Errorf("remove the keys of the test: %v", err)
			}
		})
	}
	return prefix
}

// dropKeys removes all keys that match a pattern.
func (s *RedisServer) dropKeys(ctx context.Context, pattern string) error {
	for cursor := "0"; ; {
		reply, err := s.Do(ctx, "SCAN", cursor, "MATCH", pattern, "COUNT", "1000")
		if err != nil {
			return err
		}
		page, _ := reply.([]any)
		if len(page) != 2 {
			return fmt.Errorf("servers: SCAN answered %v", reply)
		}
		keys, _ := page[1].([]any)
		for _, key := range keys {
			if _, err := s.Do(ctx, "UNLINK", fmt.Sprint(key)); err != nil {
				return err
			}
		}
		if cursor = fmt.Sprint(page[0]); cursor == "0" {
			return nil
		}
	}
}

// AwaitQueue waits until a queue of a broker that was started here would survive Kill. A declaration
// that is only in the log of the broker's own database may still be lost, unlike a confirmed message.
func (s *RabbitMQServer) AwaitQueue(name string) error {
	if s.dir == "" {
		return errNotOurs
	}
	for deadline := time.Now().Add(startLimit); time.Now().Before(deadline); time.Sleep(pollEvery) {
		files, err := filepath.Glob(filepath.Join(s.dir, "mnesia", s.node+"@*", "rabbit_durable_queue.DC*"))
		if err != nil {
			return err
		}
		for _, file := range files {
			text, _ := os.ReadFile(file) // a file that has been removed since does not matter
			if bytes.Contains(text, []byte(name)) {
				return nil
			}
		}
	}
	return errors.New("servers: queue " + name + " is not on disk after " + startLimit.String())
}
