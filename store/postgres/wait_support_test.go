package postgres_test

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// couple is two stores on the same tables, as two processes would have: one owns records, the other waits for them.
type couple struct {
	*testing.T
	owner, waiter *postgres.Store
	// proxy is in front of the one that waits.
	proxy *servers.Proxy
	admin *pgxpool.Pool
	// name is by which the server knows the sessions of the one that waits.
	name string
}

func newCouple(t *testing.T, options ...postgres.Option) *couple {
	t.Helper()
	address := servers.Postgres(t).SchemaURL(t)
	c := &couple{T: t, name: "waits " + rand.Text(), admin: openAdmin(t, address)}
	c.proxy = servers.NewProxy(t, address)
	c.owner = openStore(t, address+"&application_name=owns%20"+rand.Text())
	c.waiter = openUnasked(t, c.proxy.URL()+"&application_name="+url.PathEscape(c.name), options...)
	return c
}

// listeners are the sessions on which the one that waits listens: how it can be told.
func (c *couple) listeners() (found []int32) {
	c.Helper()
	rows, err := c.admin.Query(context.Background(),
		`SELECT pid FROM pg_stat_activity WHERE application_name = $1 AND query LIKE 'LISTEN %'`, c.name)
	must(c, err)
	found, err = pgx.CollectRows(rows, pgx.RowTo[int32])
	must(c, err)
	return found
}

// channel is that on which the stores talk to each other.
func (c *couple) channel() (name string) {
	c.Helper()
	eventually(c, "the store listens", 10*time.Second, func() bool { return len(c.listeners()) == 1 })
	must(c, c.admin.QueryRow(c.Context(), `SELECT query FROM pg_stat_activity WHERE pid = $1`, c.listeners()[0]).Scan(&name))
	return strings.Trim(strings.TrimPrefix(name, "LISTEN "), `"`)
}

// overhear listens to what the stores say to each other.
func (c *couple) overhear() *pgx.Conn {
	c.Helper()
	conn, err := pgx.ConnectConfig(c.Context(), c.admin.Config().ConnConfig)
	must(c, err)
	c.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(c.Context(), `LISTEN `+pgx.Identifier{c.channel()}.Sanitize())
	must(c, err)
	return conn
}

// waits begins to wait, and returns where the end of the wait is told.
func (c *couple) waits(id store.ID, attempt int64) <-chan error {
	ended := make(chan error, 1)
	crowd(c.Context(), 1, func(ctx context.Context, _ int) { ended <- c.waiter.Wait(ctx, id, attempt) })
	return ended
}

// calm is after how long the one that waits looks by itself; whoever is told learns much earlier.
const calm = time.Second

// wakes waits for what begin makes, lets it end, and checks that the wait ends too. It returns how long that took.
func (c *couple) wakes(ears *pgx.Conn, begin func() (id store.ID, attempt int64, end func())) time.Duration {
	c.Helper()
	id, attempt, end := begin()
	ended := c.waits(id, attempt)
	if ears != nil {
		ctx, cancel := context.WithTimeout(c.Context(), 30*time.Second)
		_, err := ears.WaitForNotification(ctx) // that somebody waits
		cancel()
		must(c, err)
	}
	select {
	case err := <-ended:
		c.Fatalf("a wait for what goes on ended with %v", err)
	case <-time.After(calm / 10): // so that looks at the beginning do not count for being told
	}
	began := time.Now()
	end()
	if err := await(c, "the end of the wait", ended); err != nil {
		c.Errorf("the wait ended with %v", err)
	}
	return time.Since(began)
}

// wantTold checks that the one that waits is told, which shows in how fast it learns. On a busy machine it may be slow once.
func (c *couple) wantTold(what string, begin func() (id store.ID, attempt int64, end func())) {
	c.Helper()
	fastest := time.Hour
	ears := c.overhear()
	for range 3 {
		if fastest = min(fastest, c.wakes(ears, begin)); fastest < calm/2 {
			_ = ears.Close(c.Context())
			return
		}
	}
	c.Errorf("%s: at best it took %s to be woken, want much less than a look of its own after %s", what, fastest, calm)
}

// owned begins with a reservation that ends as the function says.
func (c *couple) owned(end func(claim store.Claim) error) func() (store.ID, int64, func()) {
	return func() (store.ID, int64, func()) {
		claim := own(c, c.owner, reservation(rand.Text()))
		return claim.ID, claim.Attempt, func() { must(c, end(claim)) }
	}
}

// inFlight begins a transaction that ends in this way.
func (c *couple) inFlight(ending store.TxAction) func() (store.ID, int64, func()) {
	return func() (store.ID, int64, func()) {
		r := reservation(rand.Text())
		working, finish := make(chan struct{}), make(chan struct{})
		go func() {
			_, err := c.owner.Transact(context.Background(), r, func(context.Context, store.Verdict) store.Settlement {
				close(working)
				<-finish
				return store.Settlement{Action: ending, Completion: *answer("done")}
			})
			if err != nil {
				c.Errorf("the transaction that was waited for: %v", err)
			}
		}()
		await(c, "the transaction", working)
		return r.ID, 0, func() { close(finish) }
	}
}
