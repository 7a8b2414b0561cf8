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
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/nightly"
)

// sharedPostgres and the others start the servers that all tests of this process share, on first use.
var (
	sharedPostgres = sync.OnceValues(func() (*PostgresServer, error) {
		return startSharedPostgres(os.Getenv(postgresVariable))
	})
	sharedRabbitMQ = sync.OnceValues(func() (*RabbitMQServer, error) {
		return startSharedRabbitMQ(os.Getenv(rabbitmqVariable))
	})
	sharedRedis = sync.OnceValues(func() (*RedisServer, error) {
		return startSharedRedis(os.Getenv(redisVariable))
	})
	sharedMariaDB = sync.OnceValues(func() (*MariaDBServer, error) {
		return startSharedMariaDB(os.Getenv(mariadbVariable))
	})
	sharedDynamoDB = sync.OnceValues(func() (*DynamoDBServer, error) {
		return startSharedDynamoDB(os.Getenv(dynamodbVariable))
	})
	sharedGalera = sync.OnceValues(func() (*GaleraCluster, error) {
		return StartGalera(context.Background())
	})
	// A cluster that is not broken on purpose has time to see that a node is only slow.
	sharedRedisCluster = sync.OnceValues(func() (*RedisCluster, error) {
		return StartRedisCluster(context.Background(), "cluster-node-timeout 30000")
	})
)

// startSharedPostgres uses the server at the URL, or starts one if there is none.
func startSharedPostgres(address string) (s *PostgresServer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*startLimit)
	defer cancel()
	if address == "" {
		s, err = StartPostgres(ctx)
	} else {
		s, err = usePostgres(ctx, address)
	}
	if err != nil {
		return nil, err
	}
	s.shared = true
	return s, nil
}

// usePostgres is a server that is already there.
func usePostgres(ctx context.Context, address string) (*PostgresServer, error) {
	if !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		return nil, fmt.Errorf("%s holds %q, which is not a URL like postgres://user@host:port/database",
			postgresVariable, address)
	}
	psql, err := findPsql(thisMachine())
	if err != nil {
		return nil, err
	}
	s := &PostgresServer{server: server{kind: "PostgreSQL", url: address}, programs: postgresPrograms{psql: psql}}
	if err := s.Exec(ctx, "SELECT 1"); err != nil {
		return nil, fmt.Errorf("the PostgreSQL that %s names: %w", postgresVariable, err)
	}
	return s, nil
}

// startSharedRabbitMQ uses the broker at the URL, or starts one if there is none.
func startSharedRabbitMQ(address string) (s *RabbitMQServer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*startLimit)
	defer cancel()
	if address == "" {
		s, err = StartRabbitMQ(ctx)
	} else {
		s, err = useRabbitMQ(ctx, address)
	}
	if err != nil {
		return nil, err
	}
	s.shared = true
	return s, nil
}

// useRabbitMQ is a broker that is already there. Neither the URL nor what the parser says about it is in an error: they
// may hold a password.
func useRabbitMQ(ctx context.Context, address string) (*RabbitMQServer, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Hostname() == "" || parsed.Scheme != "amqp" && parsed.Scheme != "amqps" {
		return nil, fmt.Errorf("%s does not hold a URL like amqp://user:password@host:port/vhost", rabbitmqVariable)
	}
	if _, err := greetRabbitMQ(ctx, parsed); err != nil {
		return nil, fmt.Errorf("the RabbitMQ that %s names: %w", rabbitmqVariable, err)
	}
	return &RabbitMQServer{server: server{kind: "RabbitMQ", url: address}}, nil
}

// startSharedRedis uses the server at the URL, or starts one if there is none.
func startSharedRedis(address string) (s *RedisServer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*startLimit)
	defer cancel()
	if address == "" {
		s, err = StartRedis(ctx)
	} else {
		s, err = useRedis(ctx, address)
	}
	if err != nil {
		return nil, err
	}
	s.shared = true
	return s, nil
}

// useRedis is a server that is already there. Neither the URL nor what the parser says about it is in an error: they
// may hold a password.
func useRedis(ctx context.Context, address string) (*RedisServer, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Hostname() == "" || parsed.Scheme != "redis" && parsed.Scheme != "rediss" {
		return nil, fmt.Errorf("%s does not hold a URL like redis://user:password@host:port/database", redisVariable)
	}
	s := &RedisServer{server: server{kind: "Redis", url: address}}
	if _, err := s.Do(ctx, "PING"); err != nil {
		return nil, fmt.Errorf("the Redis that %s names: %w", redisVariable, err)
	}
	return s, nil
}

// startSharedMariaDB uses the server at the URL, or starts one if there is none.
func startSharedMariaDB(address string) (s *MariaDBServer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*startLimit)
	defer cancel()
	if address == "" {
		s, err = StartMariaDB(ctx)
	} else {
		s, err = useMariaDB(ctx, address)
	}
	if err != nil {
		return nil, err
	}
	s.shared = true
	return s, nil
}

// useMariaDB is a server that is already there. Neither the URL nor what the parser says about it is in an error: they
// may hold a password.
func useMariaDB(ctx context.Context, address string) (*MariaDBServer, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Port() == "" || parsed.Scheme != "mysql" {
		return nil, fmt.Errorf("%s does not hold a URL like mysql://user:password@host:port/database", mariadbVariable)
	}
	s := &MariaDBServer{server: server{kind: "MariaDB", url: address}}
	if s.programs.client, err = lookInSbin(thisMachine(), "mariadb"); err != nil {
		return nil, fmt.Errorf("the tests need MariaDB's client. On Debian or Ubuntu, as root:\n\n    %s", mariadbInstall)
	}
	if err := s.Exec(ctx, "SELECT 1"); err != nil {
		return nil, fmt.Errorf("the MariaDB that %s names: %w", mariadbVariable, err)
	}
	return s, nil
}

// startSharedDynamoDB uses the server at the endpoint, or starts one if there is none, which keeps nothing on disk.
func startSharedDynamoDB(endpoint string) (s *DynamoDBServer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*startLimit)
	defer cancel()
	if endpoint == "" {
		if s, err = startDynamoDB(ctx, false); err != nil {
			return nil, err
		}
	} else if s = (&DynamoDBServer{server: server{kind: "DynamoDB", url: endpoint}}); !s.answers(ctx) {
		return nil, fmt.Errorf("the DynamoDB that %s names does not answer", dynamodbVariable)
	}
	s.shared = true
	return s, nil
}

// UnlessAllStores returns the groups of the conformance suite that are run of one of many combinations of stores: the
// groups given, or all of them in make test-all. All of every combination would take too long for each change.
func UnlessAllStores(groups ...string) []string { return nightly.Either(nil, groups) }

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

// NewPrometheus starts a server for this test, with a configuration like prometheus.yml, and closes it at the end. The
// test fails if it cannot be had.
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

// closeWith closes the server at the end of the test, which shows its log if it has failed.
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

// Shared says that the server outlives the tests that use it, so that each has to remove what it makes.
func (s *server) Shared() bool { return s.shared }

// Name makes a name that no other test has, on no machine: the server may be shared. It needs no quotes in SQL, and
// begins with the name of the test, for people who look into the server.
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

// Schema creates a schema for this test. It is removed with all that is in it at the end from a server that stays; one
// that was started here goes as a whole, with its schemas.
func (s *PostgresServer) Schema(t testing.TB) (name string) {
	t.Helper()
	name = s.Name(t)
	if err := s.Exec(t.Context(), "CREATE SCHEMA "+name); err != nil {
		t.Fatalf("create a schema: %v", err)
	}
	if s.dir == "" {
		t.Cleanup(func() { s.dropSchema(t, name) })
	}
	return name
}

// dropSchema does not wait for ever if a transaction of the test is still open.
func (s *PostgresServer) dropSchema(t testing.TB, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	err := s.Exec(ctx,
		"SET client_min_messages = warning; SET lock_timeout = '60s'; DROP SCHEMA IF EXISTS "+name+" CASCADE")
	if err != nil {
		t.Errorf("drop the schema of the test: %v", err)
	}
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

// Database creates a database for this test, and returns its name. It is removed with all that is in it at the end from
// a server that stays.
func (s *MariaDBServer) Database(t testing.TB) (name string) {
	t.Helper()
	name = s.Name(t)
	if err := s.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatalf("create a database: %v", err)
	}
	if s.dir == "" {
		t.Cleanup(func() { s.dropDatabase(t, name) })
	}
	return name
}

// dropDatabase does not wait for ever if a transaction of the test is still open.
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

// Prefix makes a text for all keys of this test to begin with, or to have within. They are removed at the end from a
// server that stays.
func (s *RedisServer) Prefix(t testing.TB) string {
	t.Helper()
	prefix := s.Name(t) + ":"
	if s.dir == "" {
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

// AwaitQueue waits until a queue of a broker that was started here would survive Kill. A declaration that is only in
// the log of the broker's own database may still be lost, unlike a message, which is safe when it is confirmed.
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
			text, _ := os.ReadFile(file) // one that has gone since is not missed
			if bytes.Contains(text, []byte(name)) {
				return nil
			}
		}
	}
	return errors.New("servers: queue " + name + " is not on disk after " + startLimit.String())
}
