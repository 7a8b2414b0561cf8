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

// ErrReadOnlyNode is returned if a server accepts no writes: it is a
// replica, which may lag behind the primary, or is about to become one.
var ErrReadOnlyNode = errors.New("mysql: this server is read-only: it may be behind the one that decides; " +
	"connect to the primary, or name all servers in the URL")

// The settings of the store's own sessions, so that no call waits for long.
const (
	// lockWait is how many seconds a statement waits for a row that another transaction has locked.
	lockWait = 1
	// tableWait is how many seconds a statement waits for a table whose definition is being changed.
	tableWait = 5
)

// setSession and setIsolation prepare a session for the store's statements. READ COMMITTED takes no locks on rows that
// do not exist, and sees the latest commits. With autocommit, each statement is a transaction of its own.
var setSession = fmt.Sprintf(`SET SESSION autocommit = 1, innodb_lock_wait_timeout = %d, lock_wait_timeout = %d,
	sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', character_set_client = utf8mb4,
	character_set_connection = utf8mb4, character_set_results = utf8mb4`, lockWait, tableWait)

const setIsolation = `SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED`

// The statements that make a cluster node wait, before each read, until it has the commits of the other nodes. A Galera
// node that has lost its quorum still accepts the setting, but refuses askGalera, the statement after it.
const (
	setGaleraReads = `SET SESSION wsrep_sync_wait = 1`
	askGalera      = `DO 1`
	setGroupReads  = `SET SESSION group_replication_consistency = 'BEFORE'`
)

// selectNode reads what kind of node this is. SHOW also works if a variable does not exist.
const selectNode = `SHOW VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', 'innodb_read_only',
	'wsrep_on', 'group_replication_group_name', 'hostname', 'port', 'pseudo_thread_id', 'character_set_client')`

// hostileSets are the character sets in which a character may end in a backslash. The driver puts values into the
// statements, and escapes their quotes with a backslash. In these sets the backslash could become part of a character,
// and the value would run as SQL. The driver itself checks only the parameter collation.
var hostileSets = []string{"big5", "cp932", "gb18030", "gb2312", "gbk", "sjis"}

// session is a connection that the store made, with facts about it that do not change.
type session struct {
	driverConn
	// number is the server's number of the connection, and node identifies the server.
	number int64
	node   string
	// made is the connector that made the connection, and host is the index of its host.
	made *connector
	host int32
}

// driverConn holds the methods of the driver's connections that package database/sql uses.
type driverConn interface {
	rawConn
	sqldriver.ConnBeginTx
	sqldriver.Pinger
	sqldriver.SessionResetter
}

// connector makes connections to the first of several hosts that accepts writes. It starts with the host of the last
// connection, so that all connections lead to the same node as long as that node works.
type connector struct {
	hosts []sqldriver.Connector
	// session holds the statements that prepare a session.
	session []string
	current atomic.Int32 // the index of the host of the last connection
	// overdue is the number of consecutive calls on that host that ran out of time.
	overdue atomic.Int32
	// rotates means that each connection is made to the next host.
	rotates bool
}

// newConnector prepares connections to the hosts of a URL. tune changes the settings of the driver, and session holds
// the statements that prepare each session.
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
			err = errors.New(err.Error()) // otherwise database/sql would connect twice more at once
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

// connectWithin makes a connection, and leaves an equal part of the time for each remaining host: a host that hangs
// accepts connections, and answers nothing.
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

// hostTimeout is how long a host may take to begin a session, if other hosts remain or the context has no deadline, as
// when database/sql connects in the background for a full pool.
const hostTimeout = 10 * time.Second

// connect makes one connection, and prepares its session.
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

// newSession returns the session of a connection to a node with the given settings.
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

// prepareSession runs the statements of a session, and returns the settings of its node. It returns an error if the
// node accepts no writes, or if the character set of the connection is not safe.
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

// isOn reports whether a setting has a value other than off. Newer servers use names where others use 0 and 1.
func isOn(value string) bool { return value != "" && value != "0" && value != "OFF" }

// queryPairs runs a SHOW statement that returns names and values, on a connection of the driver.
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

// tuneOwn sets how the store's own connections are made. Values are put into the statements, so that each call takes
// one round trip. Rows count as affected if they were found. The size of a packet is limited by the server's setting.
func (s *Store) tuneOwn(config *driver.Config) {
	config.InterpolateParams = true
	config.ClientFoundRows = true
	config.MultiStatements = true
	config.ParseTime = false
	config.CheckConnLiveness = true
	config.MaxAllowedPacket = 0
	config.Logger = driverLog{s.logger}
}

// driverLog logs the messages of the driver at debug level. They
// are about dead connections, whose users also get an error.
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

// idle returns the number of unused connections that a pool keeps.
func (o *options) idle() int {
	if o.spread {
		return -1
	}
	return o.connections
}

// maxIdle is how long an unused connection is kept.
const maxIdle = 5 * time.Minute

// attempts is the most times that a call is made if nothing was written: the connections of a pool often turn out dead
// together, and a node that refuses writes is left for the next one.
const attempts = 3

// with calls a function with a connection of the store's own, and retries with another
// connection if nothing was written. It closes the connection to a node that accepts no
// writes. If no connection can be made, all hosts were already tried, and with does not
// retry: in an outage retries would multiply the connections that the hosts have to refuse.
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
	_ = conn.Close() // this returns it to its pool
	return err
}

// discard makes the pool close a connection.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // database/sql closes it because of this error
}

// leaveNode closes the idle connections, which lead to a node that turned out to be unfit.
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

// hangsAfter is how many consecutive calls run out of time before their node counts as hanging.
const hangsAfter = 2

// hangs records how a call ended, and reports whether its node is left because consecutive
// calls ran out of time. Such a node may accept connections and answer no writes, as a Galera
// node does while another node copies it. On a node that is only slow, some calls succeed.
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

// sessionOf returns the session of a connection of the store's own, or nil.
func sessionOf(conn *sql.Conn) (s *session) {
	_ = conn.Raw(func(raw any) error {
		s, _ = raw.(*session)
		return nil
	})
	return s
}
