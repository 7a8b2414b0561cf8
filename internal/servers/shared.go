package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
)

// These variables return the servers that all tests of this process share, found or started on first use.
var (
	sharedPostgres = sync.OnceValues(func() (*PostgresServer, error) {
		return shared(postgresVariable, usePostgres, func(ctx context.Context) (*PostgresServer, error) {
			return StartPostgres(ctx)
		})
	})
	sharedRabbitMQ = sync.OnceValues(func() (*RabbitMQServer, error) {
		return shared(rabbitmqVariable, useRabbitMQ, StartRabbitMQ)
	})
	sharedRedis = sync.OnceValues(func() (*RedisServer, error) {
		return shared(redisVariable, useRedis, func(ctx context.Context) (*RedisServer, error) { return StartRedis(ctx) })
	})
	sharedMariaDB = sync.OnceValues(func() (*MariaDBServer, error) {
		return shared(mariadbVariable, useMariaDB, func(ctx context.Context) (*MariaDBServer, error) { return StartMariaDB(ctx) })
	})
	sharedDynamoDB = sync.OnceValues(func() (*DynamoDBServer, error) {
		return shared(dynamodbVariable, useDynamoDB, StartDynamoDBInMemory)
	})
	sharedGalera = sync.OnceValues(func() (*GaleraCluster, error) {
		return StartGalera(context.Background())
	})
	// A shared cluster is not broken on purpose. Its long timeout avoids fail-overs of nodes that are only slow.
	sharedRedisCluster = sync.OnceValues(func() (*RedisCluster, error) {
		return StartRedisCluster(context.Background(), "cluster-node-timeout 30000")
	})
)

// sharer is a kind of server that tests can share.
type sharer interface{ share() }

func (s *server) share() { s.shared = true }

// shared uses the server that the environment variable names, or starts one if the variable is empty.
func shared[S sharer](
	variable string, use func(ctx context.Context, address string) (S, error), start func(context.Context) (S, error),
) (s S, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*startLimit)
	defer cancel()
	if address := os.Getenv(variable); address != "" {
		s, err = use(ctx, address)
	} else {
		s, err = start(ctx)
	}
	if err == nil {
		s.share()
	}
	return s, err
}

// StartShared starts one server of each kind that several packages of tests use, and
// returns the environment variables that pass them to the test processes. If the
// environment already names a server of a kind, none is started. CloseAll ends the servers.
func StartShared(ctx context.Context) (environ []string, err error) {
	var (
		mu       sync.Mutex
		starting sync.WaitGroup
		errs     []error
		private  []string
	)
	for variable, start := range map[string]func() (string, error){
		postgresVariable: func() (string, error) { return addressOf(StartPostgres(ctx, "max_connections=600")) },
		mariadbVariable:  func() (string, error) { return addressOf(StartMariaDB(ctx, "max-connections=600")) },
		redisVariable:    func() (string, error) { return addressOf(StartRedis(ctx)) },
		dynamodbVariable: func() (string, error) { return addressOf(StartDynamoDBInMemory(ctx)) },
	} {
		if os.Getenv(variable) != "" {
			continue
		}
		private = append(private, variable)
		starting.Go(func() {
			address, err := start()
			mu.Lock()
			defer mu.Unlock()
			environ, errs = append(environ, variable+"="+address), append(errs, err)
		})
	}
	starting.Wait()
	return append(environ, privateVariable+"="+strings.Join(private, " ")), errors.Join(errs...)
}

// privateVariable is the environment variable that lists the servers in the
// environment that end with the run: tests need not remove what they create there.
const privateVariable = "ONCEWARD_TEST_PRIVATE"

// staysAfter reports whether the server that a variable names outlives the run of the tests.
func staysAfter(variable string) bool {
	return !slices.Contains(strings.Fields(os.Getenv(privateVariable)), variable)
}

// addressOf returns the URL of a server that was just started.
func addressOf[S interface{ URL() string }](s S, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return s.URL(), nil
}

// usePostgres uses an existing server, in a database that this process creates and removes at its end:
// sessions, advisory locks, notifications and the rows that VACUUM may remove are separate for each database.
func usePostgres(ctx context.Context, address string) (*PostgresServer, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" {
		return nil, fmt.Errorf("%s does not hold a URL like postgres://user@host:port/database", postgresVariable)
	}
	s := &PostgresServer{server: server{kind: "PostgreSQL", url: address, stays: staysAfter(postgresVariable)}}
	if s.programs.psql, err = findPsql(thisMachine()); err != nil {
		return nil, err
	}
	name := "onceward_test_" + strings.ToLower(rand.Text())
	if err := s.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, fmt.Errorf("the PostgreSQL that %s names: %w", postgresVariable, err)
	}
	parsed.Path = "/" + name
	s.url, s.guest = parsed.String(), &guestDatabase{at: address, name: name}
	if s.stays {
		enlist(s)
	}
	return s, nil
}

// guestDatabase is a database that this process has created on an existing server.
type guestDatabase struct{ at, name string }

// Close ends a server that was started here permanently, and removes its data. On another server it
// removes the database that this process has created, and ends the sessions that still use the database.
func (s *PostgresServer) Close() error {
	if s.guest == nil {
		return s.server.Close()
	}
	dismiss(s)
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	host := &PostgresServer{server: server{url: s.guest.at, stays: s.stays}, programs: s.programs}
	return host.Exec(ctx, "DROP DATABASE IF EXISTS "+s.guest.name+" WITH (FORCE)")
}

// useRabbitMQ uses an existing broker. Errors contain neither the
// URL nor the parser's error, because they may contain a password.
func useRabbitMQ(ctx context.Context, address string) (*RabbitMQServer, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Hostname() == "" || parsed.Scheme != "amqp" && parsed.Scheme != "amqps" {
		return nil, fmt.Errorf("%s does not hold a URL like amqp://user:password@host:port/vhost", rabbitmqVariable)
	}
	if _, err := greetRabbitMQ(ctx, parsed); err != nil {
		return nil, fmt.Errorf("the RabbitMQ that %s names: %w", rabbitmqVariable, err)
	}
	return &RabbitMQServer{server: server{kind: "RabbitMQ", url: address, stays: true}}, nil
}

// useRedis uses an existing server. Errors contain neither the URL
// nor the parser's error, because they may contain a password.
func useRedis(ctx context.Context, address string) (*RedisServer, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Hostname() == "" || parsed.Scheme != "redis" && parsed.Scheme != "rediss" {
		return nil, fmt.Errorf("%s does not hold a URL like redis://user:password@host:port/database", redisVariable)
	}
	s := &RedisServer{server: server{kind: "Redis", url: address, stays: staysAfter(redisVariable)}}
	if _, err := s.Do(ctx, "PING"); err != nil {
		return nil, fmt.Errorf("the Redis that %s names: %w", redisVariable, err)
	}
	return s, nil
}

// useMariaDB uses an existing server. Errors contain neither the
// URL nor the parser's error, because they may contain a password.
func useMariaDB(ctx context.Context, address string) (*MariaDBServer, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Port() == "" || parsed.Scheme != "mysql" {
		return nil, fmt.Errorf("%s does not hold a URL like mysql://user:password@host:port/database", mariadbVariable)
	}
	s := &MariaDBServer{server: server{kind: "MariaDB", url: address, stays: staysAfter(mariadbVariable)}}
	if s.programs.client, err = lookInSbin(thisMachine(), "mariadb"); err != nil {
		return nil, fmt.Errorf("the tests need MariaDB's client. On Debian or Ubuntu, as root:\n\n    %s", mariadbInstall)
	}
	if err := s.Exec(ctx, "SELECT 1"); err != nil {
		return nil, fmt.Errorf("the MariaDB that %s names: %w", mariadbVariable, err)
	}
	return s, nil
}

// useDynamoDB uses an existing server.
func useDynamoDB(ctx context.Context, endpoint string) (*DynamoDBServer, error) {
	s := &DynamoDBServer{server: server{kind: "DynamoDB", url: endpoint, stays: staysAfter(dynamodbVariable)}}
	if !s.answers(ctx) {
		return nil, fmt.Errorf("the DynamoDB that %s names does not answer", dynamodbVariable)
	}
	return s, nil
}
