package world

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/lab/chaos/internal/node"
)

// mysqlClock is how far the clock of MariaDB servers is off, in microseconds. The servers have the machine's clock: what
// a proxy passes on says the time with the offset.
type mysqlClock struct{ offset atomic.Int64 }

func (c *mysqlClock) set(offset time.Duration) { c.offset.Store(offset.Microseconds()) }

// change puts the offset into a statement.
func (c *mysqlClock) change(sql string) string {
	const now = "UTC_TIMESTAMP(6)"
	if !strings.Contains(sql, now) {
		return sql
	}
	return strings.ReplaceAll(sql, now, fmt.Sprintf("(%s + INTERVAL %d MICROSECOND)", now, c.offset.Load()))
}

// mariadb is a MariaDB server. In front of it are a proxy that knows its protocol and a wire, for the nodes, and another
// proxy for those who go past all faults.
type mariadb struct {
	server      *servers.MariaDBServer
	proxy, past *servers.Proxy
	wire        *wire
}

// front puts what belongs in front of a server there.
func (w *World) front(name string, server *servers.MariaDBServer, clock *mysqlClock) (m mariadb, err error) {
	m.server = server
	if m.past, err = servers.StartMySQLProxy(server.URL(), clock.change); err != nil {
		return m, err
	}
	if m.proxy, err = servers.StartMySQLProxy(server.URL(), clock.change); err != nil {
		return m, err
	}
	m.wire, err = w.network.lay(name, m.proxy.Addr())
	return m, err
}

func (m mariadb) close() error {
	var errs []error
	for _, proxy := range []*servers.Proxy{m.proxy, m.past} {
		if proxy != nil {
			errs = append(errs, proxy.Close())
		}
	}
	return errors.Join(errs...)
}

// mysqlURL is the URL of servers at these addresses.
func mysqlURL(addresses ...string) string {
	return "mysql://root@" + strings.Join(addresses, ",") + "/test"
}

// mysql is one MariaDB server.
type mysql struct {
	world *World
	mariadb
	clock mysqlClock
	// acts makes those who kill and pause the server wait for each other, and cuts those who cut commits.
	acts, cuts sync.Mutex
}

func openMySQL(ctx context.Context, w *World) (database, error) {
	server, err := servers.StartMariaDB(ctx)
	if err != nil {
		return nil, err
	}
	m := &mysql{world: w, mariadb: mariadb{server: server}}
	if m.mariadb, err = w.front("database", server, &m.clock); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, makeTables(ctx, m.direct())
}

// makeTables makes the tables of a store, before the nodes start all at once.
func makeTables(ctx context.Context, url string) error {
	db, err := node.Open(ctx, url, 0)
	if err != nil {
		return err
	}
	return db.Close()
}

func (m *mysql) url() string       { return mysqlURL(m.wire.addr()) }
func (m *mysql) direct() string    { return mysqlURL(m.past.Addr()) }
func (m *mysql) front() string     { return "" }
func (m *mysql) clockFile() string { return "" }
func (m *mysql) plain() bool       { return false }
func (m *mysql) close() error      { return errors.Join(m.mariadb.close(), m.server.Close()) }

func (m *mysql) busy(ctx context.Context) string { return m.mariadb.busy(ctx) }

// busy lists the transactions that are open.
func (m mariadb) busy(ctx context.Context) string {
	found, err := m.server.Query(ctx, `SELECT concat('transaction of session ', trx_mysql_thread_id, ' is ', trx_state,
		' since ', trx_started, ' with ', coalesce(left(trx_query, 100), 'nothing')) FROM information_schema.innodb_trx`)
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(found, "\n", "; ")
}

func (m *mysql) setClock(_ context.Context, offset time.Duration) error {
	m.clock.set(offset)
	return nil
}

func (m *mysql) faults() []Fault {
	return append([]Fault{
		{"database-kill", func(ctx context.Context) error { return m.alone(ctx, m.world.die) }},
		{"database-pause", func(ctx context.Context) error { return m.alone(ctx, m.world.sleep) }},
		{"commit-reply-cut", func(ctx context.Context) error { return m.trap(ctx, m.proxy.CutReply) }},
		{"commit-request-cut", func(ctx context.Context) error { return m.trap(ctx, m.proxy.CutRequest) }},
	}, m.world.wireFaults("database", m.wire)...)
}

// alone does something to the server that nothing else may be done to at the time.
func (m *mysql) alone(ctx context.Context, do func(context.Context, machine) error) error {
	m.acts.Lock()
	defer m.acts.Unlock()
	return do(ctx, m.server)
}

func (m *mysql) trap(ctx context.Context, arm func(match func(sql string) bool)) error {
	m.cuts.Lock()
	defer m.cuts.Unlock()
	return trapCommits(ctx, m.proxy, arm)
}
