package world

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/lab/chaos/internal/node"
	"github.com/onceward/onceward/store"
	mysqlstore "github.com/onceward/onceward/store/mysql"
)

// TestTrapCatchesHandlers: the commit of a handler is caught, with the lease that the nodes of a run have: by that the
// store sets its session behind the COMMIT in the same text (I14).
func TestTrapCatchesHandlers(t *testing.T) {
	t.Parallel()
	proxy := servers.NewMySQLProxy(t, servers.MariaDB(t).DatabaseURL(t))
	s, err := mysqlstore.Open(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	r := &store.Reservation{
		ID: store.ID{Scope: "anna", Key: "key"}, Operation: "POST /payments", Lease: node.Timing.Lease,
		Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1, Sum: [32]byte{7}}}, Retention: time.Hour,
	}
	_, _ = rand.Read(r.Nonce[:])
	proxy.CutReply(isCommit)
	v, err := s.Transact(t.Context(), r, func(context.Context, store.Verdict) store.Settlement {
		return store.Settlement{Action: store.TxCommit, Completion: store.Completion{Response: store.Response{Status: 201}}}
	})
	if proxy.Sprung() != 1 || err != nil || v.Record.State != store.StateCompleted {
		t.Errorf("%d commits were caught, and the store learned (%s, %v)", proxy.Sprung(), v.Record.State, err)
	}
}

// TestIsCommit: what goes along with a COMMIT does not hide it, and nothing else is taken for one.
func TestIsCommit(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"COMMIT": true, "commit and chain": true, "INSERT INTO a VALUES (1); COMMIT": true,
		"RELEASE SAVEPOINT s; COMMIT; SET SESSION wait_timeout = 70": true,
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED":     false, "SELECT committed FROM a; SELECT 1": false,
	} {
		if isCommit(sql) != want {
			t.Errorf("%q: %t", sql, !want)
		}
	}
}
