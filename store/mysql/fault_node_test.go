package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
)

// TestServerKilledAndRestarted: what was acknowledged is there, calls in between are refused, and the same store goes
// on.
func TestServerKilledAndRestarted(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it kills a server of its own, as TestKilledServer does")
	server := servers.NewMariaDB(t)
	s := openStore(t, server.DatabaseURL(t))
	claim := own(t, s, reservation("key"))
	must(t, server.Kill())
	if _, err := s.Reserve(t.Context(), reservation("other")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("L2: a reservation without a server returned %v", err)
	}
	must(t, server.Restart())
	_, err := s.Complete(t.Context(), claim, answer("done"))
	must(t, err)
	must(t, server.Kill())
	must(t, server.Restart())
	wantState(t, s, "key", store.StateCompleted, "E7")
	own(t, s, reservation("other"))
}

// TestServerThatHangs: a call is given up with its caller, and what it wrote, if anything, is found by its nonce.
func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	server := servers.NewMariaDB(t)
	s := openStore(t, server.DatabaseURL(t))
	own(t, s, reservation("first"))
	must(t, server.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	r := reservation("key")
	if _, err := s.Reserve(ctx, r); !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("L2: a reservation that was given up returned %v", err)
	}
	must(t, server.Resume())
	own(t, s, r)
}

// TestNodeThatHangs: a node that still takes connections, and answers nothing, is left for the next host of the URL,
// for reservations as for handlers, as soon as calls have run out of time on it.
func TestNodeThatHangs(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a server of its own and pauses it; TestReadOnlyNode leaves a node too")
	first, second := servers.NewMariaDB(t), servers.MariaDB(t)
	name := second.Database(t)
	must(t, first.Exec(t.Context(), "CREATE DATABASE "+name))
	openStore(t, "mysql://root@"+second.Addr()+"/"+name) // makes the tables
	both := openStore(t, "mysql://root@"+first.Addr()+","+second.Addr()+"/"+name)
	var crowd sync.WaitGroup
	for i := range 8 { // so that connections are idle
		crowd.Go(func() {
			_, err := both.Reserve(t.Context(), reservation(fmt.Sprint("reserved ", i)))
			if err == nil {
				_, err = both.Transact(t.Context(), reservation(fmt.Sprint("run ", i)), working)
			}
			if err != nil {
				t.Errorf("before the node hangs: %v", err)
			}
		})
	}
	crowd.Wait()
	must(t, first.Pause())
	defer func() { must(t, first.Resume()) }()
	for what, call := range map[string]func(ctx context.Context) (store.Verdict, error){
		"reservation": func(ctx context.Context) (store.Verdict, error) { return both.Reserve(ctx, reservation("key")) },
		"handler": func(ctx context.Context) (store.Verdict, error) {
			return both.Transact(ctx, reservation("run"), working)
		},
	} {
		await.Success(t, "scenario 37: a "+what+" leaves the node that hangs", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := call(ctx)
			return err
		})
	}
}

// working is work that does nothing, and has an answer.
func working(context.Context, store.Verdict) store.Settlement { return settled(store.TxCommit, "done") }

// TestReadOnlyNode: a node that turns read-only under a store is left for the next host of the URL, also for a user
// whom it would still let write. Without another one nothing is executed.
func TestReadOnlyNode(t *testing.T) {
	t.Parallel()
	first, second := servers.NewMariaDB(t), servers.MariaDB(t)
	name := second.Database(t)
	must(t, first.Exec(t.Context(), "CREATE DATABASE "+name))
	alone := openStore(t, strings.TrimSuffix(first.URL(), "/test")+"/"+name)
	openStore(t, strings.TrimSuffix(second.URL(), "/test")+"/"+name) // makes the tables
	both := openStore(t, "mysql://root@"+first.Addr()+","+second.Addr()+"/"+name)
	proxy := servers.NewMySQLProxy(t, strings.TrimSuffix(first.URL(), "/test")+"/"+name)
	counted := openStore(t, proxy.URL())
	user := openStore(t, asUser(t, strings.TrimSuffix(first.URL(), "/test")+"/"+name, "SELECT, INSERT, UPDATE, DELETE"))
	claim := own(t, both, reservation("key"))
	own(t, user, reservation("user's"))
	wantState(t, alone, "key", store.StateInProgress, "the first host")

	must(t, first.Exec(t.Context(), "SET GLOBAL read_only = 1"))
	for _, key := range []string{"reserved", "again"} {
		if _, err := alone.Reserve(t.Context(), reservation(key)); !errors.Is(err, store.ErrUnavailable) ||
			!errors.Is(err, mysql.ErrReadOnlyNode) {
			t.Errorf("a reservation on a read-only node returned %v", err)
		}
	}
	_, _ = counted.Reserve(t.Context(), reservation("counted")) // which closes the connection
	connections := proxy.Connections()
	if _, err := counted.Reserve(t.Context(), reservation("counted")); !errors.Is(err, mysql.ErrReadOnlyNode) {
		t.Errorf("a reservation without a connection returned %v", err)
	}
	if made := proxy.Connections() - connections; made != 1 {
		t.Errorf("scenario 47: a call that all hosts refuse asked them %d times", made)
	}
	if _, err := user.Reserve(t.Context(), reservation("user's other")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a reservation that a read-only node refuses returned %v", err)
	}
	if _, err := alone.Complete(t.Context(), claim, answer("done")); !errors.Is(err, mysql.ErrReadOnlyNode) {
		t.Errorf("a completion on a read-only node returned %v", err)
	}
	if _, err := mysql.Open(t.Context(), first.URL(), quiet); !errors.Is(err, mysql.ErrReadOnlyNode) {
		t.Errorf("a store was opened on a read-only node: %v", err)
	}
	own(t, both, reservation("moved"))
	must(t, first.Exec(t.Context(), "SET GLOBAL read_only = 0"))
	wantState(t, alone, "moved", store.StateNone, "it went to the second host")
	wantState(t, alone, "reserved", store.StateNone, "L2: nothing was written")
	wantState(t, alone, "key", store.StateInProgress, "nor was the answer")
}

// TestLockedRecord: a transaction that holds a record makes others wait for a bounded time only.
func TestLockedRecord(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	claim := own(t, s, reservation("held"))
	tx, err := admin.Begin()
	must(t, err)
	defer func() { _ = tx.Rollback() }()
	id := idOf("held")
	hash := id.HashBytes()
	_, err = tx.Exec(`UPDATE onceward_record SET due = due WHERE hash = ?`, hash[:])
	must(t, err)
	made := idOf("made")
	hash = made.HashBytes()
	_, err = tx.Exec(`INSERT INTO onceward_record SELECT ?, attempt, revision, state, due, created_at, settled_at, record,
		content FROM onceward_record`, hash[:])
	must(t, err)
	// The locks are held until all of these calls have returned.
	v, err := s.Reserve(t.Context(), reservation("held"))
	if err != nil || v.Decision != store.DecisionInProgress {
		t.Errorf("a reservation of a record that is locked got (%s, %v)", v.Decision, err)
	}
	v, err = s.Reserve(t.Context(), reservation("made"))
	if err != nil || v.Decision != store.DecisionInProgress || v.Record.State != store.StateNone {
		t.Errorf("a reservation of a record that a transaction makes got (%s, %v)", v.Decision, err)
	}
	if err := s.Extend(t.Context(), claim, time.Minute); !errors.Is(err, store.ErrBusy) {
		t.Errorf("a heartbeat for a record that is locked returned %v", err)
	}
	must(t, tx.Rollback())
	must(t, s.Extend(t.Context(), claim, time.Minute))
	own(t, s, reservation("made"))
}

// TestTokensOfNodesWhoseClocksDiffer: a record that is made again by a node whose clock is behind has a larger token
// (S7).
func TestTokensOfNodesWhoseClocksDiffer(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	ahead, behind := openStore(t, url), openStore(t, url)
	ahead.SetTime(firstMoment + time.Hour.Microseconds())
	behind.SetTime(firstMoment)
	last := int64(0)
	for range 3 {
		for _, s := range []*mysql.Store{ahead, behind} {
			claim := own(t, s, reservation("key"))
			if claim.Attempt <= last {
				t.Errorf("S7: attempt %d after %d", claim.Attempt, last)
			}
			last = claim.Attempt
			_, err := s.Complete(t.Context(), claim, answer("done"))
			must(t, err)
			must(t, s.Bust(t.Context(), idOf("key"), false))
		}
	}
}
