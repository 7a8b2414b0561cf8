package crashtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// world is a database and a provider, in which shops come and go.
type world struct {
	testing.TB
	settings shopSettings
	provider *provider.Server
	store    fullStore
	guard    *onceward.Guard // as the shops have it
	counts   func(table string) int
	// free reports whether no process holds a lock that all who write have to wait for.
	free func() bool
}

// onStores runs a test in a world on each durable store.
func onStores(t *testing.T, dedup bool, test func(t *testing.T, w *world)) {
	t.Helper()
	on(t, "", dedup, test)
}

// on is onStores for one kind of store, or for all.
func on(t *testing.T, where string, dedup bool, test func(t *testing.T, w *world)) {
	t.Helper()
	for _, kind := range []string{"sqlite", "postgres"} {
		if where != "" && where != kind {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, kind, dedup))
		})
	}
}

func newWorld(t testing.TB, kind string, dedup bool) *world {
	t.Helper()
	dir := t.TempDir()
	url := filepath.Join(dir, "shop.db")
	serial := "INTEGER PRIMARY KEY"
	if kind == "postgres" {
		url, serial = servers.Postgres(t).SchemaURL(t), "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
	}
	ledger := filepath.Join(dir, "ledger")
	bank, err := provider.Start(t.Context(), provider.Config{LedgerPath: ledger, Dedup: dedup})
	must(t, err)
	t.Cleanup(func() { _ = bank.Close() })
	store, db, err := openStore(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { _, _ = db.Close(), store.Close() })
	guard, err := newShopGuard(store)
	must(t, err)
	for _, table := range []string{"seat", "confirmation"} {
		_, err = db.ExecContext(t.Context(), `CREATE TABLE `+table+` (number `+serial+`, name TEXT NOT NULL)`)
		must(t, err)
	}
	return &world{
		TB: t, provider: bank, store: store, guard: guard, free: func() bool { return kind == "postgres" || unlocked(t, url) },
		settings: shopSettings{
			Store: url, Provider: bank.URL, Dedup: dedup, Diary: filepath.Join(dir, "diary"), Lease: 10 * await.Limit,
		},
		counts: func(table string) (n int) {
			must(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+table).Scan(&n))
			return n
		},
	}
}

// unlocked reports whether the lock of an SQLite file can be had now.
func unlocked(t testing.TB, path string) bool {
	t.Helper()
	conn, err := sqlite3.Open("file:" + path + "?_pragma=busy_timeout(100)")
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	if err := conn.Exec(`BEGIN IMMEDIATE`); err != nil {
		return false
	}
	must(t, conn.Exec(`ROLLBACK`))
	return true
}

// stops pauses a shop with SIGSTOP. One that holds the lock of an SQLite file at that moment, for a heartbeat, would
// hold up everybody: it goes on for a moment and is paused again.
func (w *world) stops(p *shopProcess) {
	w.Helper()
	for must(w, p.Pause()); !w.free(); must(w, p.Pause()) {
		must(w, p.Resume())
		time.Sleep(10 * time.Millisecond)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shopProcess is a shop as the test sees it.
type shopProcess struct {
	testing.TB
	*proctest.Process
	url string
}

// opens starts a shop with the settings as changed.
func (w *world) opens(change func(*shopSettings)) *shopProcess {
	w.Helper()
	settings := w.settings
	if change != nil {
		change(&settings)
	}
	encoded, err := json.Marshal(settings)
	must(w, err)
	p := &shopProcess{TB: w.TB, Process: proctest.Start(w.TB, proc.Self(shopVariable, string(encoded)))}
	p.url = p.Hear("http://")
	return p
}

// reply is an answer of a shop, or none.
type reply struct {
	status   int
	body     string
	replayed bool
	err      error
}

// oneShot never sends a request again by itself, as a transport does that keeps connections.
var oneShot = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: await.Limit}

// post sends a request under a key, and repeats it, as a client does, while the answer is that nothing was executed.
func (p *shopProcess) post(path, key, body string) (r reply) {
	p.Helper()
	await.Success(p, "the database is not too busy", func() error {
		if r = p.postOnce(path, key, body); r.status == http.StatusServiceUnavailable {
			return fmt.Errorf("the answer is %+v", r)
		}
		return nil
	})
	return r
}

func (p *shopProcess) postOnce(path, key, body string) reply {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.url+path, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	request.Header.Set("Idempotency-Key", key)
	request.Header.Set("Content-Type", "application/json")
	response, err := oneShot.Do(request)
	if err != nil {
		return reply{err: err}
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, string(content), response.Header.Get("Idempotent-Replayed") == "true", err}
}

// settles repeats a request, as a client does, until its answer is final.
func (p *shopProcess) settles(path, key, body string) (r reply) {
	p.Helper()
	await.Success(p, "the answer is final", func() error {
		if r = p.post(path, key, body); r.err != nil || r.status == http.StatusConflict || r.status >= http.StatusInternalServerError {
			return fmt.Errorf("the answer is %+v", r)
		}
		return nil
	})
	return r
}

// endsLease ends the lease of an operation in progress whose owner is dead or stopped, as time would.
func (w *world) endsLease(key string) {
	w.Helper()
	if rec := w.record(key); rec.State == store.StateInProgress {
		must(w, w.store.Extend(w.Context(), store.Claim{ID: rec.ID, Attempt: rec.Attempt}, time.Microsecond))
	}
}

// record returns the record of a key; its state is none if there is none.
func (w *world) record(key string) store.Record {
	w.Helper()
	rec, err := w.store.Get(w.Context(), store.ID{Scope: "shop", Key: key})
	if err != nil && err != store.ErrNotFound {
		w.Fatal(err)
	}
	return rec
}

// awaits waits until a record is in a state, without any request.
func (w *world) awaits(key string, state store.State) (rec store.Record) {
	w.Helper()
	await.Success(w, "the record is "+state.String(), func() error {
		if rec = w.record(key); rec.State != state {
			return fmt.Errorf("it is %s (%s, %s)", rec.State, rec.Point, rec.LastError)
		}
		return nil
	})
	return rec
}

// awaitsQuestions waits until the poller has asked the provider three times about an operation.
func (w *world) awaitsQuestions(key string) {
	w.Helper()
	await.That(w, "the poller has asked three times", func() bool { return w.record(key).ReconcileCount >= 3 })
}

// passed counts how often shops passed a point.
func (w *world) passed(point string) (times int) {
	w.Helper()
	diary, err := os.ReadFile(w.settings.Diary)
	must(w, err)
	for line := range strings.Lines(string(diary)) {
		if line == point+"\n" {
			times++
		}
	}
	return times
}

// charges is how many charges the provider made for a reference.
func (w *world) charges(reference string) int { return len(w.provider.Charges(reference)) }
