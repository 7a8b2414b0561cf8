package stores_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/sealed"
	"github.com/onceward/onceward/store/sqlite"
	"github.com/onceward/onceward/store/tiered"
)

// node is a tiered store on a real Redis, and how often the front answered.
type node struct {
	*testing.T
	store *tiered.Store
	count counter
}

const key = "payment"

var keyID = store.ID{Scope: "acme", Key: key}

func newNode(t *testing.T, durable store.Store, url string, config tiered.Config) *node {
	t.Helper()
	n := &node{T: t}
	config.Logger, config.Observer = quiet, &n.count
	var err error
	n.store, err = tiered.New(durable, openFront(t, url, "onceward"), config)
	must(t, err)
	t.Cleanup(func() { _ = n.store.Close() })
	return n
}

// retry wants a replay, and returns what is replayed and whether the front did it. Nothing is executed by it.
func (n *node) retry() (body string, hit bool) {
	n.Helper()
	hits := n.count.hits.Load()
	v, err := n.store.Reserve(n.Context(), booking(key))
	if err != nil || v.Decision != store.DecisionReplay {
		n.Fatalf("a retry got (%s, %v), want a replay", v.Decision, err)
	}
	return string(v.Record.Response.Body), n.count.hits.Load() > hits
}

// fill retries until the front answers.
func (n *node) fill(want string) {
	n.Helper()
	await.That(n, "the front answers", func() bool {
		body, hit := n.retry()
		if body != want {
			n.Fatalf("%q is replayed, want %q", body, want)
		}
		return hit
	})
}

// TestFrontKilled: while the front is down retries are answered all the same, a bust says what it could not do, and
// what the front still holds when it is back is not seen by the node that busted it, nor by another one once it is
// told.
func TestFrontKilled(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	durable := memory.New()
	a := newNode(t, durable, server.URL(), tiered.Config{})
	b := newNode(t, durable, server.URL(), tiered.Config{})
	must(t, execute(t.Context(), a.store, key, "old"))
	a.fill("old")
	b.fill("old")
	must(t, server.Kill())

	var retries sync.WaitGroup
	for range 20 {
		retries.Go(func() {
			for range 20 {
				v, err := a.store.Reserve(t.Context(), booking(key))
				if err != nil || v.Decision != store.DecisionReplay {
					t.Errorf("without its front a retry got (%s, %v)", v.Decision, err)
				}
			}
		})
	}
	retries.Wait()
	var stale *store.StaleError
	if err := a.store.Bust(t.Context(), keyID, false); !errors.As(err, &stale) || time.Until(stale.Until) > tiered.MaxMaxAge {
		t.Fatalf("a bust without the front: %v, want a StaleError that ends within an hour", err)
	}
	must(t, execute(t.Context(), a.store, key, "new"))
	must(t, server.Restart()) // it has kept the old answer in its append-only file
	told := false
	await.That(t, "the front is told", func() bool {
		if body, _ := a.retry(); body != "new" {
			t.Fatalf("the node that busted it replays %q", body)
		}
		body, hit := b.retry()
		if body == "old" && told {
			t.Fatal("the old answer is seen again")
		}
		told = told || body == "new" && !hit && !a.away()
		return told
	})
}

// away reports whether the front is left alone: a retry does not ask it.
func (n *node) away() bool {
	looks := n.count.looks.Load()
	n.retry()
	return n.count.looks.Load() == looks
}

// TestFrontSlow: a front that does not answer costs a bounded number of look-ups.
func TestFrontSlow(t *testing.T) {
	t.Parallel()
	proxy, err := servers.StartTCPProxy(servers.NewRedis(t).Addr())
	must(t, err)
	t.Cleanup(func() { must(t, proxy.Close()) })
	n := newNode(t, memory.New(), "redis://"+proxy.Addr(), tiered.Config{FrontTimeout: 50 * time.Millisecond})
	must(t, execute(t.Context(), n.store, key, "done"))
	n.fill("done")
	proxy.Block(true)
	looks := n.count.looks.Load()
	for range 1000 {
		if _, hit := n.retry(); hit {
			t.Fatal("a front answered although its answers were held back")
		}
	}
	if asked := n.count.looks.Load() - looks; asked > 10 {
		t.Errorf("1000 retries waited %d times for a front that is known to be slow", asked)
	}
	proxy.Block(false)
	n.fill("done")
}

// nodeClock is the clock of a node, which a test moves.
type nodeClock struct{ ahead atomic.Int64 }

func (c *nodeClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// TestStaleEntry: an old entry that is put back by hand, without an end, is not answered.
func TestStaleEntry(t *testing.T) {
	t.Parallel()
	const maxAge = 10 * time.Minute
	server := servers.NewRedis(t, "appendonly no")
	var clock nodeClock
	n := newNode(t, memory.New(), server.URL(), tiered.Config{MaxAge: maxAge, Clock: clock.now})
	must(t, execute(t.Context(), n.store, key, "old"))
	n.fill("old")
	name, value := onlyEntry(t, server)
	must(t, n.store.Bust(t.Context(), keyID, false))
	must(t, execute(t.Context(), n.store, key, "new"))
	clock.ahead.Store(int64(maxAge + time.Millisecond))
	_, err := server.Do(t.Context(), "SET", name, value)
	must(t, err)
	for range 200 {
		if body, hit := n.retry(); body != "new" || hit {
			t.Fatalf("%q is replayed, by the front: %t", body, hit)
		}
	}
	if n.count.looks.Load() < 2 {
		t.Error("the front was not asked: the test shows nothing")
	}
}

// onlyEntry returns the one entry that the server holds.
func onlyEntry(t *testing.T, server *servers.RedisServer) (name, value string) {
	t.Helper()
	keys, err := server.Do(t.Context(), "KEYS", "*")
	must(t, err)
	if names := keys.([]any); len(names) == 1 {
		held, err := server.Do(t.Context(), "GET", names[0].(string))
		must(t, err)
		return names[0].(string), held.(string)
	}
	t.Fatalf("the server holds %q, want one entry", keys)
	return "", ""
}

// TestOldSnapshot: a front that was put back to a snapshot from before a bust has lost the tombstone. The old answer is
// then seen, and is not any more when it is MaxAge old.
func TestOldSnapshot(t *testing.T) {
	t.Parallel()
	const maxAge = 10 * time.Minute
	server := servers.NewRedis(t, "appendonly no")
	var clock nodeClock
	n := newNode(t, memory.New(), server.URL(), tiered.Config{MaxAge: maxAge, Clock: clock.now})
	must(t, execute(t.Context(), n.store, key, "old"))
	n.fill("old")
	_, err := server.Do(t.Context(), "SAVE")
	must(t, err)
	file := filepath.Join(server.Dir(), "dump.rdb")
	snapshot, err := os.ReadFile(file)
	must(t, err)
	must(t, n.store.Bust(t.Context(), keyID, false))
	must(t, execute(t.Context(), n.store, key, "new"))
	must(t, server.Kill())
	must(t, os.WriteFile(file, snapshot, 0o600))
	must(t, server.Restart())
	if _, value := onlyEntry(t, server); !strings.Contains(value, "old") {
		t.Fatal("the snapshot does not hold the old answer: the test shows nothing")
	}
	await.That(t, "the old answer is seen", func() bool {
		body, hit := n.retry()
		return body == "old" && hit
	})
	clock.ahead.Store(int64(maxAge + time.Millisecond))
	for range 200 {
		if body, hit := n.retry(); body != "new" || hit {
			t.Fatalf("%q is replayed when it is %s old, by the front: %t", body, maxAge, hit)
		}
	}
}

// TestSlowFill: what a node has read before a bust, and a slow connection brings to the front behind it, is not seen.
func TestSlowFill(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	proxy := servers.NewRedisProxy(t, server.URL())
	durable := memory.New()
	slow := newNode(t, durable, proxy.URL(), tiered.Config{FrontTimeout: await.Limit})
	quick := newNode(t, durable, server.URL(), tiered.Config{FrontTimeout: await.Limit})
	must(t, execute(t.Context(), quick.store, key, "old"))
	_, err := server.Do(t.Context(), "CONFIG", "RESETSTAT") // the fronts have tried whether they can set
	must(t, err)
	sent, arrives := make(chan struct{}), make(chan struct{})
	var first sync.Once
	proxy.Answer(func(command string) bool {
		if strings.HasPrefix(command, "SET ") {
			first.Do(func() { close(sent) })
			<-arrives
		}
		return false
	}, "", 1)
	if body, hit := slow.retry(); body != "old" || hit {
		t.Fatalf("%q was replayed, by the front: %t", body, hit)
	}
	<-sent
	must(t, quick.store.Bust(t.Context(), keyID, false))
	must(t, execute(t.Context(), quick.store, key, "new"))
	close(arrives)
	await.That(t, "the fill has arrived", func() bool {
		stats, err := server.Do(t.Context(), "INFO", "commandstats")
		must(t, err)
		return strings.Contains(fmt.Sprint(stats), "cmdstat_set:calls=2,")
	})
	for _, n := range []*node{slow, quick} {
		if body, hit := n.retry(); body != "new" || hit {
			t.Errorf("%q is replayed, by the front: %t", body, hit)
		}
	}
}

// TestEntryUnderALostKey: an answer that the front holds under a key that is gone does not hide the one that the
// durable store has under another key.
func TestEntryUnderALostKey(t *testing.T) {
	t.Parallel()
	durable, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"))
	must(t, err)
	n := newNode(t, durable, servers.NewRedis(t).URL(), tiered.Config{})
	ring := func(inside store.Store, ids ...uint32) *sealed.Store {
		var config sealed.Config
		for _, id := range ids {
			config.Keys = append(config.Keys, sealed.Key{ID: id, Secret: bytes.Repeat([]byte{byte(id)}, 32)})
		}
		s, err := sealed.New(inside, config)
		must(t, err)
		return s
	}
	must(t, execute(t.Context(), ring(n.store, 1), key, "done"))
	await.That(t, "the front answers", func() bool { _, hit := n.retry(); return hit })

	renewed := ring(n.store, 2)
	ask := func() (verdicts []store.Verdict, err error) {
		v, err := renewed.Reserve(t.Context(), booking(key))
		w, workErr := renewed.Transact(t.Context(), booking(key), func(context.Context, store.Verdict) store.Settlement {
			t.Error("it was executed again")
			return store.Settlement{Action: store.TxRollback}
		})
		return []store.Verdict{v, w}, errors.Join(err, workErr)
	}
	if _, err := ask(); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("without its key the answer is %v, want ErrUnreadable", err)
	}
	resealer, err := sealed.NewResealer(ring(durable, 2, 1), sealed.ResealerConfig{Logger: quiet}) // past the front
	must(t, err)
	_, err = resealer.RunOnce(t.Context())
	must(t, err)
	hits := n.count.hits.Load()
	verdicts, err := ask()
	must(t, err)
	for _, v := range verdicts {
		if v.Decision != store.DecisionReplay || string(v.Record.Response.Body) != "done" {
			t.Errorf("a retry got %s, %q", v.Decision, v.Record.Response.Body)
		}
	}
	if n.count.hits.Load() != hits+2 {
		t.Error("the front had no answer under the lost key: the test shows nothing")
	}
}

// deadFront is a front that fails.
type deadFront struct{ tiered.Front }

func (deadFront) Now() time.Time                                { return time.Time{} }
func (deadFront) Get(context.Context, store.ID) ([]byte, error) { return nil, io.ErrUnexpectedEOF }

func (deadFront) Add(context.Context, store.ID, []byte, time.Time) error { return io.ErrUnexpectedEOF }

func (deadFront) Invalidate(context.Context, store.ID, time.Duration) error {
	return io.ErrUnexpectedEOF
}

// TestSettledWithoutFront: an operator's bust and a poller's answer are done, and the audit says so, while the front
// cannot be told.
func TestSettledWithoutFront(t *testing.T) {
	t.Parallel()
	durable := memory.New()
	s, err := tiered.New(durable, deadFront{}, tiered.Config{Logger: quiet})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	guard, err := onceward.New(s, onceward.Config{
		Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit, Logger: quiet,
	})
	must(t, err)

	operator, err := reconcile.NewOperator(guard, s)
	must(t, err)
	must(t, execute(t.Context(), s, key, "done"))
	if err := operator.Bust(t.Context(), reconcile.By{Who: "ada", Why: "a test"}, keyID, false); !errors.Is(err, store.ErrStale) {
		t.Errorf("the operator's bust: %v, want ErrStale", err)
	}
	wantOutcome(t, s, keyID)

	lost := store.ID{Scope: "acme", Key: "lost"}
	v, err := s.Reserve(t.Context(), booking(lost.Key))
	must(t, err)
	must(t, s.Abandon(t.Context(), store.Claim{ID: lost, Attempt: v.Record.Attempt}, "no answer came"))
	poller, err := reconcile.NewPoller(guard, s, reconcile.Config{
		Logger: quiet,
		Rules: map[string]reconcile.Rule{"POST /payments": {
			Resolver: reconcile.ResolverFunc(func(context.Context, *store.Record) (reconcile.Answer, error) {
				return reconcile.Completed(completionOf("found").Response, ""), nil
			}),
		}},
	})
	must(t, err)
	report, err := poller.Reconcile(t.Context(), lost)
	if err != nil || report.Completed != 1 {
		t.Errorf("the poller reports (%+v, %v), want one completed", report, err)
	}
	wantOutcome(t, s, lost)
	if rec, err := durable.Get(t.Context(), lost); err != nil || rec.State != store.StateCompleted {
		t.Errorf("the record is (%s, %v), want it completed", rec.State, err)
	}
}

// wantOutcome: the audit says that the act on an ID was done.
func wantOutcome(t *testing.T, s store.Auditor, id store.ID) {
	t.Helper()
	entries, err := s.Audit(t.Context(), id)
	must(t, err)
	if len(entries) != 2 || !strings.HasPrefix(entries[1].Outcome, "onceward: done, but an old answer can still be seen") {
		t.Errorf("the audit says %+v, want that it was done", entries)
	}
}
