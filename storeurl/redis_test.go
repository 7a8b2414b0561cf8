package storeurl_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/tiered"
	"github.com/onceward/onceward/storeurl"
)

func openStore(t *testing.T, url string) storeurl.Closer {
	t.Helper()
	s, err := storeurl.OpenStore(t.Context(), url, storeurl.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// reservation is one of a key that no other test has.
func reservation(t *testing.T) *store.Reservation {
	return &store.Reservation{
		ID: store.ID{Scope: t.Name(), Key: "k"}, Fingerprints: []store.Fingerprint{{Secret: 1}}, Nonce: store.Nonce{1},
		Lease: time.Hour, Retention: time.Hour,
	}
}

// complete makes a record and completes it.
func complete(t *testing.T, s store.Store) {
	t.Helper()
	v, err := s.Reserve(t.Context(), reservation(t))
	if err != nil || v.Decision != store.DecisionExecute {
		t.Fatalf("reserve: %v (%v)", v.Decision, err)
	}
	_, err = s.Complete(t.Context(), store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt},
		&store.Completion{Response: store.Response{Status: 201, Body: []byte("made")}})
	if err != nil {
		t.Fatal(err)
	}
}

// onPrefix returns the URL of the shared server with a prefix that belongs to the test.
func onPrefix(t *testing.T) string {
	t.Helper()
	server := servers.Redis(t)
	return server.URL() + "?prefix=" + server.Prefix(t)
}

// TestOpenRedis: each kind of Redis is opened by its URL, and keeps records.
func TestOpenRedis(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]func(t *testing.T) string{
		"redis":          func(t *testing.T) string { return onPrefix(t) },
		"redis+sentinel": func(t *testing.T) string { return servers.NewRedisSentinel(t).URL() },
		"redis+cluster":  func(t *testing.T) string { return servers.NewRedisCluster(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name != "redis" {
				nightly.Only(t, "it starts a group of servers; TestStoreOnCluster of the store has one")
			}
			s := openStore(t, address(t))
			if _, ok := s.(*redis.Store); !ok {
				t.Fatalf("it is a %T", s)
			}
			complete(t, s)
			if _, err := s.Get(t.Context(), reservation(t).ID); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOpenStoreOfADatabase: OpenStore opens what Open does.
func TestOpenStoreOfADatabase(t *testing.T) {
	t.Parallel()
	s := openStore(t, filepath.Join(t.TempDir(), "store.db"))
	complete(t, s)
	if _, ok := store.As[store.Transactor](s); !ok {
		t.Error("it has no transactions")
	}
}

// TestFront: a front is before the database, which stays the one that decides, and keeps its transactions.
func TestFront(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]func(t *testing.T) string{
		"a path":      func(t *testing.T) string { return filepath.Join(t.TempDir(), "store.db") + "?front=" },
		"sqlite:path": func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "store.db") + "?front=" },
		"postgres://": func(t *testing.T) string { return servers.Postgres(t).SchemaURL(t) + "&front=" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			front := servers.NewRedis(t).URL()
			db := open(t, address(t)+front)
			if _, ok := store.As[store.Transactor](db.Store); !ok {
				t.Error("it has no transactions")
			}
			exec(t, db, `CREATE TABLE note (text TEXT NOT NULL)`)
			if n := count(t, db); n != 0 {
				t.Errorf("there are %d notes, want none", n)
			}
			complete(t, db)
			fill(t, db, front)
			inside, ok := store.Find[*tiered.Store](db.Store)
			if !ok {
				t.Fatalf("it is a %T", db.Store)
			}
			if _, err := inside.Unwrap().Get(t.Context(), reservation(t).ID); err != nil {
				t.Errorf("the database does not have the record: %v", err)
			}
		})
	}
}

// held reports whether a front on that server answers for the record of the test.
func held(t *testing.T, url string, options ...redis.Option) bool {
	t.Helper()
	front, err := redis.OpenFront(t.Context(), url, options...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = front.Close() }()
	value, err := front.Get(t.Context(), reservation(t).ID)
	if err != nil {
		t.Fatal(err)
	}
	return len(value) > 0
}

// fill retries until a retry has filled the front.
func fill(t *testing.T, s store.Store, front string, options ...redis.Option) {
	t.Helper()
	await.That(t, "the front is filled", func() bool {
		if v, err := s.Reserve(t.Context(), reservation(t)); err != nil || v.Decision != store.DecisionReplay {
			t.Fatalf("retry: %v (%v)", v.Decision, err)
		}
		return held(t, front, options...)
	})
}

// TestSharedFront: databases with a front on one server do not answer for each other if each has a prefix, nor do stores
// on it.
func TestSharedFront(t *testing.T) {
	t.Parallel()
	front := servers.NewRedis(t).URL()
	file := filepath.Join(t.TempDir(), "blue.db") + "?front=" + front + "?prefix=blue"
	blue := open(t, file)
	complete(t, blue)
	fill(t, blue, front, redis.WithPrefix("blue"))
	complete(t, open(t, filepath.Join(t.TempDir(), "green.db")+"?front="+front+"?prefix=green"))
	complete(t, openStore(t, front+"?prefix=one"))
	complete(t, openStore(t, front+"?prefix=two"))
}

// TestFrontIsAway: a front that cannot be reached is no reason not to start.
func TestFrontIsAway(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "store.db")+"?front=redis://127.0.0.1:1/0",
		storeurl.WithLogger(slog.New(slog.DiscardHandler)))
	complete(t, db)
	if v, err := db.Reserve(t.Context(), reservation(t)); err != nil || v.Decision != store.DecisionReplay {
		t.Errorf("retry: %v (%v)", v.Decision, err)
	}
}

// TestRedisRefused: the error says what to write, and never what is in the URL.
func TestRedisRefused(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	file := filepath.Join(t.TempDir(), "store.db")
	tests := []struct{ url, want string }{
		{"redis+sentinel://u:secret@127.0.0.1", "the name that the sentinels know"},
		{"redis://u:secret@127.0.0.1,127.0.0.2", "redis+cluster://"},
		{"redis://u:secret@127.0.0.1/zero", "a database is a number"},
		{"redis://u:secret@127.0.0.1:1/0", "127.0.0.1:1"},
		{"redis+other://u:secret@127.0.0.1", "the scheme is not one of these"},
		{"redis://u:secret@127.0.0.1/0?front=redis://u:secret@127.0.0.1", "a front is for a database"},
		{file + "?front=u:secret@127.0.0.1", "?front=redis://"},
		{file + "?front=http://u:secret@127.0.0.1", "?front=redis://"},
		{file + "?front=redis://u:secret%zz@127.0.0.1", "?front=redis://"},
		{file + "?front=redis://u:secret@127.0.0.1&front=redis://127.0.0.1", "?front=redis://"},
		{file + "?front=redis://u:secret&more@127.0.0.1", "?front=redis://"},
		{file + "?front=redis+sentinel://u:secret@127.0.0.1", "the name that the sentinels know"},
		{file + "?front=redis://u:secret@127.0.0.1?prefix=a%26prefix=b", "the parameter prefix"},
		{file + "?front=redis://u:secret@127.0.0.1?prefix=", "is no prefix"},
		{"redis://u:secret@127.0.0.1?prefix=a%20b", "is no prefix"},
		{"redis://u:secret@127.0.0.1?prefix=a&prefix=b", "the parameter prefix"},
		{"oracle://u:secret@127.0.0.1?front=redis://127.0.0.1", "use postgres://"},
		{"dynamodb://u:secret@table?front=redis://127.0.0.1", "a front is for a database"},
		{"mysql://u:secret@127.0.0.1:1/shop", "127.0.0.1:1"},
		{"mysql://u:secret%zz@127.0.0.1:1/shop", "cannot be read"},
		{"mysql://u:secret@127.0.0.1:1/shop?prefix=A", "the table prefix"},
	}
	for _, test := range tests {
		s, err := storeurl.OpenStore(ctx, test.url)
		if err == nil || s != nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error is %v, want one with %q and no password", test.url, err, test.want)
		}
	}
	_, err := storeurl.Open(ctx, "redis://u:secret@127.0.0.1")
	if err == nil || !strings.Contains(err.Error(), "?front=redis://") || strings.Contains(err.Error(), "secret") {
		t.Errorf("Open of Redis: the error is %v", err)
	}
}

// TestFrontWithAPassword: what is escaped in the front's URL is its own, down to a password with all that has a meaning.
func TestFrontWithAPassword(t *testing.T) {
	t.Parallel()
	const password = "p&s#s+w?o=r%d/"
	server := servers.NewRedis(t)
	address, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	_, err = server.Do(t.Context(), "ACL", "SETUSER", "cache", "on", ">"+password, "~*", "&*", "+@all")
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword("cache", password)
	db := open(t, fmt.Sprintf("%s?front=%s", filepath.Join(t.TempDir(), "store.db"), url.QueryEscape(address.String())))
	complete(t, db)
	fill(t, db, address.String())
}

// TestReadOnlyRedis: what is opened for looking only shows what there is, and writes nothing.
func TestReadOnlyRedis(t *testing.T) {
	t.Parallel()
	url := onPrefix(t)
	complete(t, openStore(t, url))
	s, err := storeurl.OpenStore(t.Context(), url, storeurl.ReadOnly(), storeurl.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	id := reservation(t).ID
	if rec, err := s.Get(t.Context(), id); err != nil || rec.State != store.StateCompleted {
		t.Errorf("the record is %s (%v)", rec.State, err)
	}
	finder, finds := store.As[store.Finder](s)
	lister, lists := store.As[store.AuditLister](s)
	buster, busts := store.As[store.Buster](s)
	executions, audits := store.As[store.ExecutionAuditor](s)
	if !finds || !lists || !busts || !audits {
		t.Fatalf("it is a %T", s)
	}
	_, found := finder.FindHash(t.Context(), id.Hash())
	_, listed := lister.ListAudit(t.Context(), store.AuditFilter{})
	_, audited := executions.ListExecutions(t.Context(), store.AuditFilter{})
	if err := errors.Join(found, listed, audited); err != nil {
		t.Error(err)
	}
	_, reserved := s.Reserve(t.Context(), reservation(t))
	for what, err := range map[string]error{"reserve": reserved, "bust": buster.Bust(t.Context(), id, true)} {
		if !errors.Is(err, store.ErrReadOnly) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestLookingAtAnEmptyRedis: who only looks leaves a server as it is. A mark would keep a service of an earlier version,
// which has nothing to do just now, from ever making a record again.
func TestLookingAtAnEmptyRedis(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	s, err := storeurl.OpenStore(t.Context(), server.URL(), storeurl.ReadOnly(),
		storeurl.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.Get(t.Context(), reservation(t).ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	keys, err := server.Do(t.Context(), "KEYS", "*")
	if err != nil || fmt.Sprint(keys) != "[]" {
		t.Errorf("the server holds %v (%v)", keys, err)
	}
}
