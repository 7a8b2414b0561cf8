package mysql_test

import (
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward/store"
)

// TestStatements pins what a call costs the server: round trips, and the statements in them, so that neither grows
// unseen.
func TestStatements(t *testing.T) {
	t.Parallel()
	l := newLossyBusiness(t)
	own(t, l, reservation("first")) // the connections are there
	transacted(t, l, "second", inserting(t, "second"), store.DecisionExecute, "the first transaction")
	var mu sync.Mutex
	var texts []string
	costs := func(name string, trips, statements int, do func()) {
		t.Helper()
		texts = nil
		l.proxy.CutRequest(func(sql string) bool {
			mu.Lock()
			defer mu.Unlock()
			texts = append(texts, sql)
			return false
		})
		do()
		l.proxy.Disarm()
		mu.Lock()
		defer mu.Unlock()
		if all := binaries.ReplaceAllString(strings.Join(texts, "; "), "?"); len(texts) != trips || strings.Count(all, ";")+1 != statements {
			t.Errorf("%s takes %d round trips and %d statements, want %d and %d:\n%s", name, len(texts),
				strings.Count(all, ";")+1, trips, statements, strings.Join(texts, "\n"))
		}
	}
	costs("a transaction", 3, 14, func() {
		transacted(t, l, "key", inserting(t, "key"), store.DecisionExecute, "a transaction")
	})
	costs("the replay of a transaction", 2, 9, func() {
		transacted(t, l, "key", refusing(t, "I1"), store.DecisionReplay, "I1")
	})
	costs("a replay", 2, 2, func() {
		v, err := l.Reserve(t.Context(), reservation("key"))
		if err != nil || v.Decision != store.DecisionReplay {
			t.Errorf("the retry got (%s, %v)", v.Decision, err)
		}
	})
	costs("a reservation", 1, 1, func() { own(t, l, reservation("reserved")) })
}

// binaries are the values of nonces and the like, which may hold any byte.
var binaries = regexp.MustCompile(`(?s)_binary'(?:[^'\\]|\\.)*'`)
