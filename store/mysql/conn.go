package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	driver "github.com/go-sql-driver/mysql"
)

// ErrReadOnlyNode is returned when a server takes no writes: it is a replica, which is behind the one that decides, or
// is about to become one.
var ErrReadOnlyNode = errors.New("mysql: this server is read-only: it may be behind the one that decides; " +
	"connect to the primary, or name all servers in the URL")

// What a session of the store's own is set to, so that no call waits for long.
const (
	// lockWait is how many seconds a statement waits for a row that another transaction has locked.
	lockWait = 1
	// tableWait is the same for a table that is being changed.
	tableWait = 5
)

// setSession makes a session what the statements need. READ COMMITTED takes no locks on rows that are not there, and
// sees what was committed a moment ago; with autocommit, a statement by itself is a transaction.
var setSession = fmt.Sprintf(`SET SESSION autocommit = 1, innodb_lock_wait_timeout = %d, lock_wait_timeout = %d,
	sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', character_set_client = utf8mb4,
	character_set_connection = utf8mb4, character_set_results = utf8mb4`, lockWait, tableWait)

const setIsolation = `SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED`

// The settings by which nodes of a cluster wait until they have what the others committed before they read. A node of
// Galera that has lost its quorum still lets sessions be set: what it refuses is the question behind that.
const (
	setGaleraReads = `SET SESSION wsrep_sync_wait = 1`
	askGalera      = `DO 1`
	setGroupReads  = `SET SESSION group_replication_consistency = 'BEFORE'`
)

// selectNode asks what kind of node this is. SHOW also works where a variable is not known.
const selectNode = `SHOW VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', 'innodb_read_only',
	'wsrep_on', 'group_replication_group_name', 'hostname', 'port', 'pseudo_thread_id', 'character_set_client')`

// hostileSets are the character sets in which a character may end in a backslash. The driver puts values into the
// statements, and escapes their quotes with one: there it would be part of a character, and the value run as SQL. It
// looks at the parameter collation alone.
var hostileSets = []string{"big5", "cp932", "gb18030", "gb2312", "gbk", "sjis"}

// session is a connection that the store has made. What does not change is known from its beginning.
type session struct {
	driverConn
	// number is the server's of the connection, and node which server that is.
	number int64
	node   string
	// made is what made it, and host to which of the hosts.
	made *connector
	host int32
}

// driverConn is what package database/sql uses of the driver's connections.
type driverConn interface {
	rawConn
	sqldriver.ConnBeginTx
	sqldriver.Pinger
	sqldriver.SessionResetter
}

// connector makes connections to the first of several hosts that takes writes. It begins with the one that the last
// connection was made to, so that all of them lead to the same node for as long as that one works.
type connector struct {
	hosts []sqldriver.Connector
	// session are the statements that set a session.
	session []string
	current atomic.Int32 // the index of the host of the last connection
	// overdue is how many calls in a row have run out of time on that host.
	overdue atomic.Int32
	// rotates makes each connection one to the next host.
	rotates bool
}

// newConnector prepares connections to the hosts of a URL, changed by tune and then by the statements of the session.
func newConnector(where *location, tune func(*driver.Config), session ...string) (*connector, error) {
	c := &connector{session: session}
	for _, address := range where.addresses {
		config := where.config.Clone()
		config.Addr = address
		tune(config)
		host, err := driver.NewConnector(config)
		if err != nil && strings.Contains(err.Error(), "unsafe collation") {
			err = fmt.Errorf("%w: say charset=utf8mb4 in the URL, and no collation", err)
		}
		if err != nil {
			return nil, err
		}
		c.hosts = append(c.hosts, host)
	}
	return c, nil
}

// Connect implements the interface of package database/sql/driver.
func (c *connector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	var errs []error
	first := int(c.current.Load())
	if c.rotates {
		first++
	}
	for i := range c.hosts {
		host := (first + i) % len(c.hosts)
		conn, err := c.connectWithin(ctx, len(c.hosts)-i, c.hosts[host])
		if err == nil {
			conn.made, conn.host = c, int32(host)
			c.current.Store(int32(host))
			return conn, nil
		}
		if errors.Is(err, sqldriver.ErrBadConn) {
			err = errors.New(err.Error()) // database/sql would connect twice more at once
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// Driver implements the interface of package database/sql/driver.
func (c *connector) Driver() sqldriver.Driver { return driver.MySQLDriver{} }

// connectWithin makes a connection, in a part of the time that leaves as much to each host that is left: one that hangs
// takes connections, and answers nothing.
func (c *connector) connectWithin(ctx context.Context, left int, host sqldriver.Connector) (*session, error) {
	limit := hostTimeout
	if until, bounded := ctx.Deadline(); bounded && left == 1 {
		limit = time.Until(until)
	} else if bounded {
		limit = min(limit, time.Until(until)/time.Duration(left))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return c.connect(ctx, host)
}

// hostTimeout is how long a host may take to let a session begin, if there is another one, or nobody who would leave:
// a pool that is full connects on its own.
const hostTimeout = 10 * time.Second

// connect makes one connection, and sets its session.
func (c *connector) connect(ctx context.Context, host sqldriver.Connector) (*session, error) {
	conn, err := host.Connect(ctx)
	if err != nil {
		return nil, err
	}
	node, err := prepareSession(ctx, conn, c.session)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return newSession(conn, node)
}

// newSession notes what is known of a connection by the settings of its node.
func newSession(conn sqldriver.Conn, node map[string]string) (*session, error) {
	full, ok := conn.(driverConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("mysql: a connection is a %T", conn), conn.Close())
	}
	number, err := strconv.ParseInt(node["pseudo_thread_id"], 10, 64)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mysql: the number of a connection: %w", err), conn.Close())
	}
	return &session{driverConn: full, number: number, node: node["hostname"] + ":" + node["port"]}, nil
}

// prepareSession sets a session, and refuses that of a node which takes no writes.
func prepareSession(ctx context.Context, conn sqldriver.Conn, session []string) (node map[string]string, err error) {
	node, err = queryPairs(ctx, conn, selectNode)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if isOn(node[name]) {
			return nil, ErrReadOnlyNode
		}
	}
	if set := node["character_set_client"]; slices.Contains(hostileSets, set) {
		return nil, fmt.Errorf("mysql: the character set %q of the connection is not safe to put values into: "+
			"say charset=utf8mb4 in the URL", set)
	}
	statements := slices.Clone(session)
	if node["wsrep_on"] == "ON" {
		statements = append(statements, setGaleraReads, askGalera)
	}
	if node["group_replication_group_name"] != "" {
		statements = append(statements, setGroupReads)
	}
	for _, statement := range statements {
		if _, err := conn.(sqldriver.ExecerContext).ExecContext(ctx, statement, nil); err != nil {
			return nil, err
		}
	}
	return node, nil
}

// isOn reports whether a setting that can be off is not. Newer servers have names where others have 0 and 1.
func isOn(value string) bool { return value != "" && value != "0" && value != "OFF" }

// queryPairs runs a SHOW of names and values on a connection that is not in a pool yet.
func queryPairs(ctx context.Context, conn sqldriver.Conn, statement string) (pairs map[string]string, err error) {
	rows, err := conn.(sqldriver.QueryerContext).QueryContext(ctx, statement, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	pairs = make(map[string]string)
	for {
		var pair [2]sqldriver.Value
		switch err := rows.Next(pair[:]); {
		case errors.Is(err, errEndOfRows):
			return pairs, nil
		case err != nil:
			return nil, err
		}
		pairs[strings.ToLower(text(pair[0]))] = text(pair[1])
	}
}

// tuneOwn sets how the store's own connections are made. Values go into the statements, so that each call is one round
// trip; rows count as affected if they were found; the server's limit on the size of a packet counts.
func (s *Store) tuneOwn(config *driver.Config) {
	config.InterpolateParams = true
	config.ClientFoundRows = true
	config.MultiStatements = true
	config.ParseTime = false
	config.CheckConnLiveness = true
	config.MaxAllowedPacket = 0
	config.Logger = driverLog{s.logger}
}

// driverLog takes what the driver says, which is about connections that have died: whoever used one gets an error too.
type driverLog struct{ *slog.Logger }

// Print implements the interface of the driver.
func (l driverLog) Print(v ...any) { l.Debug("onceward: mysql: " + fmt.Sprint(v...)) }

// openPool opens a pool of connections.
func openPool(c *connector, o *options) *sql.DB {
	db := sql.OpenDB(c)
	c.rotates = o.spread
	db.SetMaxOpenConns(o.connections)
	db.SetMaxIdleConns(o.idle())
	db.SetConnMaxIdleTime(maxIdle)
	return db
}

// idle is how many connections a pool keeps that are not used.
func (o *options) idle() int {
	if o.spread {
		return -1
	}
	return o.connections
}

// maxIdle is how long a connection is kept that is not used.
const maxIdle = 5 * time.Minute

// attempts is how often a call is made that did not get through: the connections of a pool turn out dead together, and
// a node that refuses writes is left for the next one.
const attempts = 3

// with calls a function with a connection of the store's own, again with another one if nothing was sent. The
// connection to a node that takes no writes is closed. Where none can be made all hosts were asked, and are not asked
// again: in an outage that would multiply what they have to refuse.
func (s *Store) with(ctx context.Context, do func(conn *sql.Conn) error) error {
	for attempt := 1; ; attempt++ {
		conn, err := take(ctx, &s.ownGate, s.own)
		if err != nil {
			return err
		}
		err = s.once(conn, do)
		if err == nil || !notSent(err) || attempt >= attempts || ctx.Err() != nil {
			return err
		}
	}
}

func (s *Store) once(conn *sql.Conn, do func(conn *sql.Conn) error) error {
	on := sessionOf(conn)
	err := do(conn)
	if unfit(err) {
		discard(conn)
		s.leaveNode()
	}
	if on != nil && on.hangs(err) {
		s.leaveNode()
	}
	_ = conn.Close() // it goes back to its pool
	return err
}

// discard makes the pool close a connection.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // this is how
}

// leaveNode closes the connections that are idle, which lead to the node that one of them has found unfit.
func (s *Store) leaveNode() {
	pools := []*sql.DB{s.own}
	if s.opened {
		pools = append(pools, s.handlers)
	}
	for _, pool := range pools {
		pool.SetMaxIdleConns(-1)
		pool.SetMaxIdleConns(s.options.idle())
	}
}

// hangsAfter is how many calls in a row run out of time before their node counts as one that hangs.
const hangsAfter = 2

// hangs notes how a call ended, and reports whether its node is left, because there calls run out of time one after the
// other: it may answer those who connect and none who writes, as a node of Galera does that is copied. On one that is
// slow alone some calls come back.
func (s *session) hangs(err error) bool {
	c := s.made
	switch {
	case len(c.hosts) == 1 || s.host != c.current.Load():
		return false
	case !errors.Is(err, context.DeadlineExceeded):
		c.overdue.Store(0)
		return false
	case c.overdue.Add(1) < hangsAfter:
		return false
	}
	c.overdue.Store(0)
	return c.current.CompareAndSwap(s.host, (s.host+1)%int32(len(c.hosts)))
}

// sessionOf is the session of a connection of the store's own.
func sessionOf(conn *sql.Conn) (s *session) {
	_ = conn.Raw(func(raw any) error {
		s, _ = raw.(*session)
		return nil
	})
	return s
}
