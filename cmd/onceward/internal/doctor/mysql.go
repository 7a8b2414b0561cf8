package doctor

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	driver "github.com/go-sql-driver/mysql"

	mysqlstore "github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/storeurl"
)

var mysqlTrials = []trial[*mysql]{
	{Check{
		"mysql/version", "MariaDB 10.6 or MySQL 8.0.13, or later, on each server.",
		"Older servers lack `NOWAIT`, which refuses a duplicate in flight at once.", "E1 [48]",
	}, tryMySQLVersion},
	{Check{
		"mysql/hosts", "Every server in the URL answers.",
		"A fail-over needs a server that can be reached.", "L2 [37]",
	}, tryMySQLHosts},
	{Check{
		"mysql/primary", "Each server takes writes (`read_only`, `innodb_read_only`).",
		"A read-only server is a replica: it lags, and takes no writes.", "S1, L2 [13, 37]",
	}, tryMySQLPrimary},
	{Check{
		"mysql/galera", "On Galera: each node is synced and in the primary component, and there are three.",
		"A node without quorum refuses writes. Of two nodes neither continues alone.", "L2 [48]",
	}, tryMySQLGalera},
	{Check{
		"mysql/locks", "Row locks exclude: a second connection is refused at once.",
		"Otherwise duplicates in flight run the handler at once, and the loser fails at its commit.",
		"E1, S1, O2 [48]",
	}, tryMySQLLocks},
	{Check{
		"mysql/isolation", "The server takes writes at READ COMMITTED, which the store sets.",
		"With `binlog_format=STATEMENT` it refuses the store's writes.", "E1, I1 [14]",
	}, tryMySQLIsolation},
	{Check{
		"mysql/durability", "`innodb_flush_log_at_trx_commit` and `sync_binlog` are 1, `innodb_doublewrite` is on.",
		"A crash loses acknowledged commits: the record is gone, the effect is not, and a retry repeats it.",
		"E7, I1, I2 [11]",
	}, tryMySQLDurability},
	{Check{
		"mysql/replicas", "If replicas follow: commits wait for them (semi-synchronous replication).",
		"A fail-over to a lagging replica forgets acknowledged answers.", "E7, I1, I2 [37]",
	}, tryMySQLReplicas},
	{Check{
		"mysql/clock", "The servers' clocks agree with this machine's and each other, and go forward.",
		"The server in use counts leases and attempt tokens. In a cluster, and after a fail-over, that changes.",
		"S3, S7, L4 [4, 5, 42]",
	}, tryMySQLClock},
	{Check{
		"mysql/connections", "Room for the service's connections, for each of `--replicas`.",
		"Without a connection, a request gets 503, and finished work cannot be settled.", "L2, E7 [15]",
	}, tryMySQLConnections},
	{Check{
		"mysql/timeouts", "The server's time-outs leave handlers and settling enough time.",
		"The server ends transactions at work.", "E1, S5 [46]",
	}, tryMySQLTimeouts},
	{Check{
		"mysql/packet", "`max_allowed_packet` admits an answer of the usual size.",
		"A larger answer cannot be stored: its outcome is unknown.", "A4, E7 [25]",
	}, tryMySQLPacket},
	{Check{
		"mysql/schema", "This program knows the tables' version.",
		"Otherwise the program refuses the tables.", "S8 [32]",
	}, tryMySQLSchema},
	{Check{
		"mysql/tables", "InnoDB tables, with primary keys and without triggers.",
		"Another engine takes no part in a transaction. Without a primary key, a record can exist twice.",
		"E1, I1, I7, S1",
	}, tryMySQLTables},
	{Check{
		"mysql/privileges",
		"The user may change records, is the service's own, and has no rights to the whole server.",
		"Without the first nothing is executed. With more, injected SQL can change settled records, the audit and " +
			"other databases.", "I7, I9, L7",
	}, tryMySQLPrivileges},
}

// mysql is the servers of the database to examine.
type mysql struct {
	url, prefix string
	replicas    int
	hosts       []mysqlHost
	// silent is the servers that do not answer, with their errors.
	silent map[string]error
	tables bool
}

// mysqlHost is one server, with its variables and its status.
type mysqlHost struct {
	address           string
	db                *sql.DB
	variables, status map[string]string
}

func examineMySQL(ctx context.Context, storeURL string, at *storeurl.Location, c Config) ([]Result, error) {
	configs, err := mysqlstore.DriverConfigs(at.URL)
	if err != nil {
		return nil, unusable(err)
	}
	p := &mysql{
		url: storeURL, prefix: cmp.Or(at.Prefix, "onceward_"), replicas: max(c.Replicas, 1),
		silent: make(map[string]error),
	}
	defer p.close()
	meet := func(ctx context.Context) error { return p.meet(ctx, configs) }
	if err := within(ctx, c.Timeout, meet); err != nil {
		return nil, unavailable(err)
	}
	return examine(ctx, c.Timeout, p, mysqlTrials), nil
}

// meet reads the variables and the status of each server. One server that answers is enough to begin.
func (p *mysql) meet(ctx context.Context, configs []*driver.Config) error {
	var failed error
	for _, config := range configs {
		host, err := newMySQLHost(ctx, config)
		if err != nil {
			p.silent[config.Addr] = err
			failed = errors.Join(failed, err)
			continue
		}
		p.hosts = append(p.hosts, host)
	}
	if len(p.hosts) == 0 {
		return failed
	}
	return p.hosts[0].db.QueryRowContext(ctx, `SELECT count(*) > 0 FROM information_schema.tables
		WHERE table_schema = DATABASE() AND table_name = ?`, p.prefix+"record").Scan(&p.tables)
}

func newMySQLHost(ctx context.Context, config *driver.Config) (host mysqlHost, err error) {
	connector, err := driver.NewConnector(config)
	if err != nil {
		return host, err
	}
	host = mysqlHost{address: config.Addr, db: sql.OpenDB(connector)}
	if host.variables, err = host.list(ctx, `SHOW GLOBAL VARIABLES`); err == nil {
		host.status, err = host.list(ctx, `SHOW GLOBAL STATUS`)
	}
	if err != nil {
		return host, errors.Join(err, host.db.Close())
	}
	return host, nil
}

// list reads names and values.
func (h *mysqlHost) list(ctx context.Context, query string) (map[string]string, error) {
	rows, err := h.db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make(map[string]string)
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		found[strings.ToLower(name)] = value
	}
	return found, rows.Err()
}

func (p *mysql) close() {
	for _, host := range p.hosts {
		_ = host.db.Close() // no transaction is open
	}
}

// each calls look for every server that answers.
func (p *mysql) each(look func(host *mysqlHost, on string)) {
	for i := range p.hosts {
		on := ""
		if len(p.hosts)+len(p.silent) > 1 {
			on = " on " + p.hosts[i].address
		}
		look(&p.hosts[i], on)
	}
}

// number returns a value of a server's variables or status, or 0 if it is missing.
func number(from map[string]string, name string) (n float64) {
	_, _ = fmt.Sscan(from[name], &n) // n stays 0 if the value is missing
	return n
}

// isMariaDB reports whether the server is MariaDB, and not MySQL.
func (h *mysqlHost) isMariaDB() bool { return strings.Contains(h.variables["version"], "MariaDB") }

// isGalera reports whether the server is a node of a Galera cluster.
func (h *mysqlHost) isGalera() bool { return h.variables["wsrep_on"] == "ON" }

func tryMySQLVersion(_ context.Context, p *mysql, r *Result) error {
	p.each(func(host *mysqlHost, on string) {
		text := host.variables["version"]
		r.saw("%s%s", text, on)
		var have [3]int
		_, _ = fmt.Sscanf(text, "%d.%d.%d", &have[0], &have[1], &have[2]) // an unreadable version counts as old
		least := [3]int{8, 0, 13}
		if host.isMariaDB() {
			least = [3]int{10, 6, 0}
		}
		if slices.Compare(have[:], least[:]) < 0 {
			r.find(Broken, "use MariaDB 10.6 or later, or MySQL 8.0.13 or later", "the server%s is version %s", on, text)
		}
	})
	return nil
}

func tryMySQLHosts(_ context.Context, p *mysql, r *Result) error {
	r.saw("%d of %d answer", len(p.hosts), len(p.hosts)+len(p.silent))
	for address, err := range p.silent {
		r.find(Weak, "start it, let this machine reach it, or take it out of the URL", "%s does not answer: %v", address, err)
	}
	return nil
}

func tryMySQLPrimary(_ context.Context, p *mysql, r *Result) error {
	p.each(func(host *mysqlHost, on string) {
		written := true
		for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
			if value := host.variables[name]; value != "" && value != "OFF" {
				written = false
				severity := Weak // the store moves on to another server
				if len(p.hosts) == 1 {
					severity = Broken
				}
				r.find(severity, "name servers in the URL that take writes, or SET GLOBAL "+name+" = OFF if this is the primary",
					"the server%s takes no writes: %s is %s", on, name, value)
			}
		}
		if written {
			r.saw("writable%s", on)
		}
	})
	return nil
}

// fewestNodes is the size of a cluster that keeps its quorum when one node is lost.
const fewestNodes = 3

func tryMySQLGalera(_ context.Context, p *mysql, r *Result) error {
	p.each(func(host *mysqlHost, on string) {
		if !host.isGalera() {
			r.saw("no node of a cluster%s", on)
			return
		}
		state, component := host.status["wsrep_local_state_comment"], host.status["wsrep_cluster_status"]
		size := int(number(host.status, "wsrep_cluster_size"))
		r.saw("%s, %s, %d nodes%s", state, component, size, on)
		switch {
		case component != "Primary":
			r.find(Broken, "bring the other nodes back, or bootstrap the most advanced one (pc.bootstrap)",
				"the node%s has no quorum: wsrep_cluster_status is %s", on, component)
		case host.status["wsrep_ready"] != "ON" || state != "Synced":
			r.find(Weak, "wait until it is synced, or take it out of the URL",
				"the node%s is not ready: wsrep_local_state_comment is %s", on, state)
		case size < fewestNodes:
			r.find(Weak, "run three nodes, or two and an arbitrator (garbd)",
				"the cluster%s has %d nodes: if one is lost, writes may be refused", on, size)
		}
	})
	return nil
}

// errorsOfLocks are the errors for a locked row: a lock wait that timed out, and NOWAIT of MySQL.
var errorsOfLocks = []uint16{1205, 3572}

// tryMySQLLocks makes two connections lock the same row. The
// row is in the table of versions: only migrations wait for it.
func tryMySQLLocks(ctx context.Context, p *mysql, r *Result) error {
	if !p.tables {
		return errNoTables
	}
	query := "SELECT version FROM " + p.table("schema") + " ORDER BY version LIMIT 1 FOR UPDATE"
	first, err := p.hosts[0].db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = first.Rollback() }() // it only reads
	var version int
	if err := first.QueryRowContext(ctx, query).Scan(&version); err != nil {
		return err
	}
	second, err := p.hosts[0].db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = second.Rollback() }() // it only reads too
	err = second.QueryRowContext(ctx, query+" NOWAIT").Scan(&version)
	var refused *driver.MySQLError
	switch {
	case err == nil:
		r.find(Broken, "use a server with InnoDB, and no proxy that sends a transaction's statements to several",
			"two connections have a lock on one row at the same time")
	case errors.As(err, &refused) && slices.Contains(errorsOfLocks, refused.Number):
		r.saw("the second one was refused: %d", refused.Number)
	default:
		return err
	}
	return nil
}

// table returns the quoted name of a table of the store.
func (p *mysql) table(name string) string {
	return "`" + strings.ReplaceAll(p.prefix+name, "`", "``") + "`"
}

func tryMySQLIsolation(_ context.Context, p *mysql, r *Result) error {
	p.each(func(host *mysqlHost, on string) {
		level := cmp.Or(host.variables["transaction_isolation"], host.variables["tx_isolation"])
		log, format := host.variables["log_bin"], host.variables["binlog_format"]
		r.saw("%s is the default, log_bin=%s, binlog_format=%s%s", level, log, format, on)
		if log == "ON" && format == "STATEMENT" {
			r.find(Broken, "SET GLOBAL binlog_format = 'ROW', and in the configuration file",
				"binlog_format%s is STATEMENT: writes at READ COMMITTED are refused", on)
		}
	})
	return nil
}
