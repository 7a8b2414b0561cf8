package redis_test

import (
	"io"
	"log/slog"
	"os"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(watchdog.Over(m))) }

var quiet = redis.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patient has a store wait for its servers for as long as a test does, however long the machine stands still.
var patient = redis.Patience(await.Limit)

// open opens a store that is closed with the test.
func open(t testing.TB, url string, options ...redis.Option) *redis.Store {
	t.Helper()
	s, err := redis.Open(t.Context(), url, append([]redis.Option{quiet, patient}, options...)...)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// fresh opens an empty store on the shared server.
func fresh(t testing.TB, options ...redis.Option) *redis.Store {
	t.Helper()
	server := servers.Redis(t)
	return open(t, server.URL(), append(options, redis.WithPrefix(server.Prefix(t)))...)
}

// instance opens an empty store for the suite.
func instance(t testing.TB, url, prefix string, options ...redis.Option) storetest.Instance {
	t.Helper()
	again := func(t testing.TB) *redis.Store {
		return open(t, url, append(options, redis.WithPrefix(prefix))...)
	}
	s := again(t)
	return storetest.Instance{Store: s, Reopen: func(t testing.TB) store.Store {
		must(t, s.Close())
		s = again(t)
		return s
	}}
}

func TestStore(t *testing.T) {
	server := servers.Redis(t)
	storetest.Run(t, storetest.Harness{Open: func(t testing.TB) storetest.Instance {
		return instance(t, server.URL(), server.Prefix(t))
	}})
}
