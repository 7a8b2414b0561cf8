package stores_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/sqlite"
	"github.com/onceward/onceward/store/tiered"
)

// sealedDatabase is a kind of store whose files can be read.
type sealedDatabase struct {
	name string
	// start starts it, without data.
	start func(t *testing.T) site
	// add has further ways to add a message in the transaction of a handler.
	add []func(ctx context.Context, box *outbox.Outbox, m outbox.Message) error
}

// site is where a database keeps everything.
type site struct {
	dirs []string
	// open opens a store of that name, which tells what it has to tell.
	open func(t *testing.T, name string, told *notes) store.Store
	// settle waits until all is where it goes, and makes the servers write it.
	settle func(t *testing.T)
	// held are patterns of the files that hold content. What is not sealed must be found in each, or the search is of no
	// use there.
	held []string
}

var databases = []sealedDatabase{
	{name: "sqlite", start: startSQLite},
	{name: "postgres", start: startPostgres, add: addToPostgres},
	{name: "redis", start: startRedis},
	{name: "postgres behind redis", start: startTiered, add: addToPostgres},
}

var addToPostgres = []func(context.Context, *outbox.Outbox, outbox.Message) error{
	func(ctx context.Context, box *outbox.Outbox, m outbox.Message) error {
		_, err := postgres.AddMessage(ctx, box, postgres.Tx(ctx), m)
		return err
	},
}

func startSQLite(t *testing.T) site {
	dir := t.TempDir()
	return site{
		dirs: []string{dir},
		open: func(t *testing.T, name string, _ *notes) store.Store {
			s, err := sqlite.Open(t.Context(), filepath.Join(dir, name+".db"))
			must(t, err)
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		settle: func(*testing.T) {}, // what is committed is in the file or in its log
		held:   []string{"plain.db*"},
	}
}

func startPostgres(t *testing.T) site {
	server := servers.NewPostgres(t, "log_statement=all")
	return site{
		dirs: []string{filepath.Dir(server.Dir())}, // the log is beside the data
		open: func(t *testing.T, _ string, told *notes) store.Store {
			s, err := postgres.Open(t.Context(), server.SchemaURL(t), postgres.WithLogger(told.logger()))
			must(t, err)
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		settle: func(t *testing.T) { must(t, server.Exec(t.Context(), `CHECKPOINT`)) },
		held:   []string{"*/base/*/*", "*/pg_wal/*", "log"},
	}
}

// redisFiles are what a Redis keeps on disk: what was written, the append-only file from the beginning, and a snapshot.
var redisFiles = []string{"appendonlydir/*.incr.aof", "appendonlydir/*.base.rdb", "dump.rdb"}

// startRedis starts a server that writes snapshots beside its append-only file, and compresses neither: a text that is
// compressed would not be found.
func startRedis(t *testing.T) site {
	server := servers.NewRedis(t, "rdbcompression no")
	return site{
		dirs: []string{server.Dir()},
		open: func(t *testing.T, name string, told *notes) store.Store {
			s, err := redis.Open(t.Context(), server.URL(), redis.WithPrefix(name), redis.WithLogger(told.logger()))
			must(t, err)
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		settle: func(t *testing.T) { writeAll(t, server) },
		held:   redisFiles,
	}
}

// writeAll has a Redis write a snapshot, and its append-only file from the beginning beside the one that it has. The
// old one would be removed: it is kept by another name.
func writeAll(t *testing.T, server *servers.RedisServer) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(server.Dir(), "appendonlydir", "*.incr.aof"))
	must(t, err)
	for _, file := range files {
		must(t, os.Link(file, filepath.Join(filepath.Dir(file), "kept-"+filepath.Base(file))))
	}
	do := func(command ...string) {
		t.Helper()
		_, err := server.Do(t.Context(), command...)
		must(t, err)
	}
	do("SAVE")
	do("BGREWRITEAOF")
	await.That(t, "the append-only file is written", func() bool {
		info, err := server.Info(t.Context())
		must(t, err)
		return info["aof_rewrite_in_progress"] == "0" && info["aof_rewrite_scheduled"] == "0"
	})
}

// startTiered starts PostgreSQL with Redis in front of it.
func startTiered(t *testing.T) site {
	durable := startPostgres(t)
	server := servers.NewRedis(t, "rdbcompression no")
	var fronts []func() bool
	return site{
		dirs: append(durable.dirs, server.Dir()),
		open: func(t *testing.T, name string, told *notes) store.Store {
			f, err := redis.OpenFront(t.Context(), server.URL(), redis.WithPrefix(name), redis.WithLogger(told.logger()))
			must(t, err)
			fronts = append(fronts, func() bool {
				value, err := f.Get(t.Context(), store.ID{Scope: "acme", Key: "key-of-/reserved"})
				must(t, err)
				return len(value) > 0
			})
			await.That(t, "the front knows the time", func() bool { return !f.Now().IsZero() })
			s, err := tiered.New(durable.open(t, name, told), f, tiered.Config{Logger: told.logger(), Observer: told})
			must(t, err)
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		settle: func(t *testing.T) {
			for _, filled := range fronts {
				await.That(t, "the front is filled", filled)
			}
			durable.settle(t)
			writeAll(t, server)
		},
		held: append(durable.held, redisFiles...),
	}
}
