package mysql_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
)

// lossy is a store behind a proxy that loses what it is told, with another one past it.
type lossy struct {
	*mysql.Store
	proxy *servers.Proxy
	past  *mysql.Store
}

func newLossy(t testing.TB) *lossy {
	t.Helper()
	return newLossyOn(t, mariadb(t))
}

func newLossyOn(t testing.TB, url string) *lossy {
	t.Helper()
	past := openStore(t, url)
	proxy := servers.NewMySQLProxy(t, url)
	return &lossy{openStore(t, proxy.URL()), proxy, past}
}

// TestLostReplyToReserve: the grant is found again by its nonce, whether it landed or not (S9).
func TestLostReplyToReserve(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	for key, lose := range map[string]func(func(string) bool){"request": l.proxy.CutRequest, "reply": l.proxy.CutReply} {
		sprung := l.proxy.Sprung()
		lose(begins("INSERT"))
		claim := own(t, l, reservation(key))
		if l.proxy.Sprung() != sprung+1 {
			t.Fatalf("the %s was not lost", key)
		}
		rec := wantState(t, l.past, key, store.StateInProgress, "S9: a lost "+key)
		if rec.Attempt != claim.Attempt {
			t.Errorf("S9: a lost %s: the grant is of attempt %d, and the record at %d", key, claim.Attempt, rec.Attempt)
		}
	}
}

// TestLostReplyToComplete: the store finds out by itself what became of the answer (E7).
func TestLostReplyToComplete(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	for key, lose := range map[string]func(func(string) bool){"request": l.proxy.CutRequest, "reply": l.proxy.CutReply} {
		claim := own(t, l, reservation(key))
		sprung := l.proxy.Sprung()
		lose(begins("UPDATE"))
		expires, err := l.Complete(t.Context(), claim, answer(key))
		rec := wantState(t, l.past, key, store.StateCompleted, "E7: a lost "+key)
		if err != nil || !expires.Equal(rec.ExpiresAt) || l.proxy.Sprung() != sprung+1 {
			t.Errorf("E7: a lost %s: complete returned (%s, %v), want what is stored: %s", key, expires, err, rec.ExpiresAt)
		}
	}
}

// TestLostReplyToBust: a bust that landed is not made again, on the record that has come since.
func TestLostReplyToBust(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	bust := func() <-chan error {
		claim := own(t, l, reservation("key"))
		_, err := l.Complete(t.Context(), claim, answer("first"))
		must(t, err)
		l.proxy.CutReply(func(sql string) bool {
			caught := begins("DELETE")(sql)
			l.proxy.Refuse(caught)
			return caught
		})
		done := make(chan error, 1)
		sprung := l.proxy.Sprung()
		go func() { done <- l.Bust(t.Context(), idOf("key"), false) }()
		must(t, l.proxy.AwaitSprung(t.Context(), sprung+1))
		return done
	}
	done := bust()
	l.proxy.Refuse(false)
	if err := <-done; err != nil {
		t.Errorf("a bust that landed returned %v", err)
	}
	wantState(t, l.past, "key", store.StateNone, "a bust that landed")

	done = bust()
	claim := own(t, l.past, reservation("key"))
	_, err := l.past.Complete(t.Context(), claim, answer("second"))
	must(t, err)
	l.proxy.Refuse(false)
	if err := <-done; !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a bust whose end cannot be told returned %v", err)
	}
	if rec := wantState(t, l.past, "key", store.StateCompleted, "what came since"); rec.Attempt != claim.Attempt {
		t.Errorf("the record is at attempt %d, want %d", rec.Attempt, claim.Attempt)
	}
}

// TestConnectionsThatDie: a pool whose connections have all died serves the next call, and the driver repeats nothing
// that was sent (scenario 10).
func TestConnectionsThatDie(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	claim := own(t, l, reservation("key"))
	l.proxy.DropAll()
	must(t, l.Extend(t.Context(), claim, time.Minute))
	l.proxy.DropAll()
	_, err := l.Complete(t.Context(), claim, answer("done"))
	must(t, err)
	admin := openAdmin(t, l.proxy.URL())
	l.proxy.DropAll()
	exec(t, admin, `CREATE TABLE things (id INT AUTO_INCREMENT PRIMARY KEY)`)
	l.proxy.CutReply(func(sql string) bool { return sql == `INSERT INTO things VALUES ()` })
	if _, err := admin.Exec(`INSERT INTO things VALUES ()`); err == nil {
		t.Error("the reply was not lost")
	}
	if n := number(t, admin, `SELECT COUNT(*) FROM things`); n != 1 {
		t.Errorf("scenario 10: a statement whose reply was lost ran %d times", n)
	}
}

// TestRoundTrips counts what a call costs.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	own(t, l, reservation("first")) // the connection is there
	trips := func(name string, want int, do func()) {
		t.Helper()
		before := l.proxy.RoundTrips()
		do()
		if got := l.proxy.RoundTrips() - before; got != want {
			t.Errorf("%s takes %d round trips, want %d", name, got, want)
		}
	}
	var claim store.Claim
	trips("a reservation", 1, func() { claim = own(t, l, reservation("key")) })
	complete := func() {
		_, err := l.Complete(t.Context(), claim, answer("done"))
		must(t, err)
	}
	trips("a completion", 1, complete)
	trips("a replay", 2, func() {
		v, err := l.Reserve(t.Context(), reservation("key"))
		if err != nil || v.Decision != store.DecisionReplay {
			t.Errorf("the retry got (%s, %v)", v.Decision, err)
		}
	})
	claim = own(t, l, reservation("long"))
	trips("a heartbeat", 1, func() { must(t, l.Extend(t.Context(), claim, time.Minute)) })
	trips("a completion behind a heartbeat", 1, complete)
	claim = own(t, l, reservation("stepped"))
	must(t, l.past.Extend(t.Context(), claim, time.Minute))
	trips("a completion behind the write of another process", 3, complete)
}

// TestReservedMeetsTransaction: a transaction of the same process is seen without waiting for its lock (E1).
func TestReservedMeetsTransaction(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	_, err := l.Transact(t.Context(), reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
		l.proxy.CutRequest(begins("INSERT"))
		defer l.proxy.Disarm()
		v, err := l.Reserve(t.Context(), reservation("key"))
		if err != nil || v.Decision != store.DecisionInProgress || l.proxy.Sprung() != 0 {
			t.Errorf("E1: a duplicate got (%s, %v), and asked the server %d times", v.Decision, err, l.proxy.Sprung())
		}
		return store.Settlement{Action: store.TxRollback}
	})
	must(t, err)
	own(t, l, reservation("key"))
}
