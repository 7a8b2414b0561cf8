package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// called reserves a key for an operation of that name.
func called(key, operation string) *store.Reservation {
	r := reservation(key)
	r.Operation = operation
	return r
}

// wantOperation checks how every node reads the operation of a record.
func wantOperation(t testing.TB, store *postgres.Store, key, want string) {
	t.Helper()
	if rec, err := store.Get(t.Context(), idOf(key)); err != nil || rec.Operation != want {
		t.Errorf("the operation of %q is %.40q (%v), want %.40q", key, rec.Operation, err, want)
	}
}

// namingOperations counts the statements about names of operations that pass from now on.
func namingOperations(proxy *servers.Proxy) func() int {
	n := make(chan int, 1)
	n <- 0
	proxy.CutRequest(func(sql string) bool {
		if strings.Contains(sql, "onceward_operation") {
			n <- <-n + 1
		}
		return false
	})
	return func() int {
		now := <-n
		n <- now
		return now
	}
}

// TestOperationsAreBounded: past the bound names are stored in full, and cost no question of their own.
func TestOperationsAreBounded(t *testing.T) {
	t.Parallel()
	const bound = 4096
	url := servers.Postgres(t).SchemaURL(t)
	proxy := servers.NewProxy(t, url)
	store, other, admin := openStore(t, proxy.URL()), openStore(t, url), openAdmin(t, url)
	exec(t, admin, `SELECT setval(pg_get_serial_sequence('onceward_operation', 'number'), 1000)`) // there may be gaps
	exec(t, admin, `INSERT INTO onceward_operation (name)
		SELECT convert_to('POST /old/' || i, 'UTF8') FROM generate_series(1, $1::int) i`, bound-3)
	for i := range 10 {
		own(t, store, called(fmt.Sprint("k", i), fmt.Sprint("POST /new/", i)))
	}
	if n := number(t, admin, `SELECT count(*) FROM onceward_operation`); n != bound {
		t.Errorf("there are %d operations with a number, want %d", n, bound)
	}
	for i := range 10 {
		wantOperation(t, store, fmt.Sprint("k", i), fmt.Sprint("POST /new/", i))
		wantOperation(t, other, fmt.Sprint("k", i), fmt.Sprint("POST /new/", i))
	}
	asked := namingOperations(proxy)
	own(t, store, called("past", "POST /new/9"))
	own(t, store, called("unheard of", "POST /unheard"))
	transacted(t, store, "in a transaction", nothing)
	if n := asked(); n != 0 {
		t.Errorf("%d statements about operations, want none: there are no numbers left", n)
	}
	own(t, other, called("elsewhere", "POST /unheard"))
	if n := number(t, admin, `SELECT count(*) FROM onceward_operation`); n != bound {
		t.Errorf("there are %d operations with a number, want %d", n, bound)
	}
}

// TestOperationsPastTheBoundAreRead: numbers that were given out before the bound held stay those of their operations.
func TestOperationsPastTheBoundAreRead(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	exec(t, admin, `SELECT setval(pg_get_serial_sequence('onceward_operation', 'number'), 10000)`)
	complete(t, s, own(t, s, called("k", "POST /payments")), "done")
	exec(t, admin, `INSERT INTO onceward_operation (number, name) OVERRIDING SYSTEM VALUE
		SELECT i, convert_to('POST /old/' || i, 'UTF8') FROM generate_series(1, 4096) i`)
	next := openStore(t, url)
	wantOperation(t, next, "k", "POST /payments")
	v, err := next.Reserve(t.Context(), called("k", "POST /payments"))
	if err != nil || v.Decision != store.DecisionReplay {
		t.Errorf("S8: a retry got (%s, %v), want the stored answer", v.Decision, err)
	}
}

// TestGapsAmongOperations: numbers that were never given out, as by transactions that were undone, count for nothing.
func TestGapsAmongOperations(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	proxy := servers.NewProxy(t, url)
	store, other, admin := openStore(t, proxy.URL()), openStore(t, url), openAdmin(t, url)
	exec(t, admin, `SELECT setval(pg_get_serial_sequence('onceward_operation', 'number'), 100000)`)
	own(t, store, called("first", "POST /payments"))
	asked := namingOperations(proxy)
	own(t, store, called("second", "POST /payments"))
	if n := asked(); n != 0 {
		t.Errorf("%d statements about an operation that has been used before, want none", n)
	}
	wantOperation(t, other, "second", "POST /payments")
}

// TestNodesShareTheNumbersOfOperations: a number is given once, however many nodes meet an operation.
func TestNodesShareTheNumbersOfOperations(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	nodes := []*postgres.Store{openStore(t, url), openStore(t, url), openStore(t, url)}
	const operations = 30
	ended := crowd(t.Context(), len(nodes), func(ctx context.Context, i int) {
		for op := range operations {
			ownIn(ctx, t, nodes[i], called(fmt.Sprint(i, " ", op), fmt.Sprint("POST /", op)))
		}
	})
	ended()
	admin := openAdmin(t, url)
	n := number(t, admin, `SELECT count(*) FROM onceward_operation`)
	last := number(t, admin, `SELECT max(number) FROM onceward_operation`)
	if n != operations || last != n {
		t.Errorf("%d operations have numbers up to %d, want %d", n, last, operations)
	}
}

// TestNewOperationsWhereAllIsStricter: where a database makes every transaction serializable, or repeats reads, nodes
// that meet a new route at the same moment serve it all the same.
func TestNewOperationsWhereAllIsStricter(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"serializable", "repeatable%20read"} {
		t.Run(level, func(t *testing.T) {
			url := servers.Postgres(t).SchemaURL(t) + "&default_transaction_isolation=" + level
			nodes := []*postgres.Store{openStore(t, url), openStore(t, url), openStore(t, url), openStore(t, url)}
			for round := range 20 {
				ended := crowd(t.Context(), 2*len(nodes), func(ctx context.Context, i int) {
					r := called(fmt.Sprint(round, " ", i), fmt.Sprint("POST /", round))
					var err error
					if i%2 == 0 {
						_, err = nodes[i/2].Reserve(ctx, r)
					} else {
						_, err = nodes[i/2].Transact(ctx, r, committing("done", nothing))
					}
					if err != nil {
						t.Errorf("a new operation was refused: %v", err)
					}
				})
				ended()
			}
		})
	}
}

// TestLongOperations: a name that no index takes is stored in full. A path may be as long as the client likes.
func TestLongOperations(t *testing.T) {
	t.Parallel()
	store := openStore(t, servers.Postgres(t).SchemaURL(t))
	var name strings.Builder
	for i := range 4000 {
		fmt.Fprint(&name, "/", i*i) // not to be compressed to a length that fits
	}
	own(t, store, called("long", name.String()))
	wantOperation(t, store, "long", name.String())
}
