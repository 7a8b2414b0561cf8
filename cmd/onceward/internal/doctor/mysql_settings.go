package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/onceward/onceward/storeurl"
)

func tryMySQLDurability(_ context.Context, p *mysql, r *Result) error {
	p.each(func(host *mysqlHost, on string) {
		flush, sync := host.variables["innodb_flush_log_at_trx_commit"], host.variables["sync_binlog"]
		doublewrite, log := host.variables["innodb_doublewrite"], host.variables["log_bin"]
		r.saw("innodb_flush_log_at_trx_commit=%s, sync_binlog=%s, log_bin=%s, innodb_doublewrite=%s%s",
			flush, sync, log, doublewrite, on)
		switch {
		case flush != "1" && host.isGalera():
			r.find(Weak, "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the configuration file",
				"innodb_flush_log_at_trx_commit%s is %s: a crash of all nodes at once loses the last commits", on, flush)
		case flush != "1":
			r.find(Broken, "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the configuration file",
				"innodb_flush_log_at_trx_commit%s is %s: a crash loses the last commits", on, flush)
		}
		if log == "ON" && sync != "1" && !host.isGalera() {
			r.find(Weak, "SET GLOBAL sync_binlog = 1, and in the configuration file",
				"sync_binlog%s is %s: after a crash of the machine replicas may have what the server has not, or lack what it has",
				on, sync)
		}
		if doublewrite == "OFF" || doublewrite == "0" {
			r.find(Weak, "set innodb_doublewrite on, unless the file system writes pages as a whole",
				"innodb_doublewrite%s is off: a crash of the machine can damage pages", on)
		}
	})
	return nil
}

// semiSync are the names of semi-synchronous replication in MariaDB and in the versions of MySQL.
var semiSync = []string{"rpl_semi_sync_master", "rpl_semi_sync_source"}

func tryMySQLReplicas(ctx context.Context, p *mysql, r *Result) error {
	for i := range p.hosts {
		host := &p.hosts[i]
		if host.isGalera() {
			r.saw("%s: a cluster certifies each commit on all nodes", host.address)
			continue
		}
		var followers int
		err := host.db.QueryRowContext(ctx,
			`SELECT count(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'`).Scan(&followers)
		if err != nil {
			return err
		}
		enabled, waiting := "", 0
		for _, name := range semiSync {
			if host.variables[name+"_enabled"] == "ON" && host.status[name+"_status"] == "ON" {
				enabled, waiting = name, int(number(host.status, name+"_clients"))
			}
		}
		r.saw("%s: %d replicas are seen, %d of them semi-synchronous", host.address, followers, waiting)
		switch {
		case followers > 0 && enabled == "":
			r.find(Weak, "SET GLOBAL rpl_semi_sync_master_enabled = ON (MySQL: rpl_semi_sync_source_enabled), and on the "+
				"replicas", "%d replicas follow %s, and commits wait for none of them", followers, host.address)
		case enabled != "" && waiting == 0:
			r.find(Weak, "see why no replica follows: commits go on alone after rpl_semi_sync_master_timeout",
				"semi-synchronous replication is on at %s, and no replica acknowledges", host.address)
		}
	}
	return nil
}

func tryMySQLClock(ctx context.Context, p *mysql, r *Result) error {
	for i := range p.hosts {
		host := &p.hosts[i]
		conn, err := host.db.Conn(ctx)
		if err != nil {
			return err
		}
		all, err := readClock(ctx, func(ctx context.Context) (time.Time, error) {
			var micros int64
			err := conn.QueryRowContext(ctx,
				`SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))`).Scan(&micros)
			return time.UnixMicro(micros), err
		})
		_ = conn.Close() // it returns to its pool
		if err != nil {
			return err
		}
		judgeClock(r, "the clock of "+host.address, all)
	}
	return nil
}

// poolsMySQL is the largest number of connections of one store: its own pool is as large as the pool for handlers.
const poolsMySQL = 2 * 32

func tryMySQLConnections(_ context.Context, p *mysql, r *Result) error {
	needed := p.replicas * poolsMySQL
	p.each(func(host *mysqlHost, on string) {
		most, used := number(host.variables, "max_connections"), number(host.status, "threads_connected")
		if limit := number(host.variables, "max_user_connections"); limit > 0 {
			most = min(most, limit)
		}
		r.saw("%.0f may be open, %.0f are, %d are needed%s", most, used, needed, on)
		if float64(needed) > most {
			r.find(Weak, "raise max_connections (or max_user_connections), or lower mysql.WithConnections",
				"%.0f connections may be open%s, and %d replicas may need %d", most, on, p.replicas, needed)
		}
	})
	return nil
}

// leastTimesMySQL are the shortest timeouts that the store needs on the server, in seconds; 0 is none.
var leastTimesMySQL = []struct {
	name  string
	least float64
	unit  float64 // of the setting, in seconds
}{
	{"wait_timeout", 60, 1},
	{"max_statement_time", 5, 1},
	{"max_execution_time", 5, 0.001},
	{"idle_transaction_timeout", 5, 1},
	{"idle_write_transaction_timeout", 5, 1},
	{"net_read_timeout", 5, 1},
	{"net_write_timeout", 5, 1},
}

func tryMySQLTimeouts(_ context.Context, p *mysql, r *Result) error {
	p.each(func(host *mysqlHost, on string) {
		for _, each := range leastTimesMySQL {
			seconds := number(host.variables, each.name) * each.unit
			if seconds == 0 {
				continue
			}
			if r.saw("%s=%gs%s", each.name, seconds, on); seconds < each.least {
				r.find(Weak, fmt.Sprintf("give it at least %g s", each.least), "%s%s is %g s", each.name, on, seconds)
			}
		}
	})
	return nil
}

// leastPacket is the size of the largest answer that is stored by default, with what is sent along.
const leastPacket = 4 << 20

func tryMySQLPacket(_ context.Context, p *mysql, r *Result) error {
	p.each(func(host *mysqlHost, on string) {
		most := number(host.variables, "max_allowed_packet")
		r.saw("%.0f MB%s", most/(1<<20), on)
		if most < leastPacket {
			r.find(Weak, "SET GLOBAL max_allowed_packet = 16777216, and in the configuration file",
				"max_allowed_packet%s is %.0f bytes", on, most)
		}
	})
	return nil
}

func tryMySQLSchema(ctx context.Context, p *mysql, r *Result) error {
	if !p.tables {
		return errNoTables
	}
	status, err := storeurl.Status(ctx, p.url)
	if err != nil {
		return err
	}
	r.saw("version %d, this program knows %d", status.Version, status.Wanted)
	if err := status.Err(); err != nil {
		r.find(Broken, "migrate first (onceward migrate up), then deploy; or use a newer program", "%v", err)
	}
	return nil
}

// selectTablesMySQL returns the store's tables, with their engine,
// the number of columns of their primary key, and their triggers.
const selectTablesMySQL = `SELECT t.table_name, coalesce(t.engine, ''),
		(SELECT count(*) FROM information_schema.statistics s WHERE s.table_schema = t.table_schema
			AND s.table_name = t.table_name AND s.index_name = 'PRIMARY'),
		(SELECT count(*) FROM information_schema.triggers g WHERE g.event_object_schema = t.table_schema
			AND g.event_object_table = t.table_name)
	FROM information_schema.tables t
	WHERE t.table_schema = DATABASE() AND t.table_type = 'BASE TABLE' AND LEFT(t.table_name, CHAR_LENGTH(?)) = ?`

func tryMySQLTables(ctx context.Context, p *mysql, r *Result) error {
	if !p.tables {
		return errNoTables
	}
	rows, err := p.hosts[0].db.QueryContext(ctx, selectTablesMySQL, p.prefix, p.prefix)
	if err != nil {
		return err
	}
	defer rows.Close()
	count := 0
	for ; rows.Next(); count++ {
		var name, engine string
		var key, triggers int
		if err := rows.Scan(&name, &engine, &key, &triggers); err != nil {
			return err
		}
		if !strings.EqualFold(engine, "InnoDB") {
			r.find(Broken, "ALTER TABLE "+name+" ENGINE = InnoDB", "the table %s is of the engine %s", name, engine)
		}
		if key == 0 {
			r.find(Broken, "restore the table as the migration makes it (onceward migrate print)",
				"the table %s has no primary key", name)
		}
		if triggers > 0 {
			r.find(Weak, "drop them: they run for each write of the store", "the table %s has %d triggers", name, triggers)
		}
	}
	r.saw("%d tables", count)
	return rows.Err()
}

// tooMuch are rights to the whole server that the store does not need.
var tooMuch = []string{
	"ALL PRIVILEGES", "SUPER", "FILE", "PROCESS", "SHUTDOWN", "RELOAD", "CREATE USER", "GRANT OPTION",
	"INSERT", "UPDATE", "DELETE", "DROP",
}

func tryMySQLPrivileges(ctx context.Context, p *mysql, r *Result) error {
	var user string
	if err := p.hosts[0].db.QueryRowContext(ctx, `SELECT CURRENT_USER()`).Scan(&user); err != nil {
		return err
	}
	r.saw("the user is %s", user)
	if err := p.mayWrite(ctx, user, r); err != nil {
		return err
	}
	grants, err := grantsMySQL(ctx, p.hosts[0].db)
	if err != nil {
		return err
	}
	for _, grant := range grants {
		rights, found := strings.CutPrefix(grant, "GRANT ")
		rights, _, everywhere := strings.Cut(rights, " ON *.* TO ")
		if !found || !everywhere {
			continue
		}
		var have []string
		for _, right := range tooMuch {
			for each := range strings.SplitSeq(rights, ", ") {
				if each == right {
					have = append(have, right)
				}
			}
		}
		if len(have) > 0 {
			r.find(Weak, "use a user of its own for the service, with rights to its database alone, as docs/mysql.md grants",
				"the user %s has %s on the whole server", user, strings.Join(have, ", "))
		}
	}
	return nil
}

// deniedMySQL are the errors for a missing right to a table and to a column.
var deniedMySQL = []uint16{1142, 1143}

// mayWrite checks whether the user may change records. EXPLAIN needs the same rights as the statement itself.
func (p *mysql) mayWrite(ctx context.Context, user string, r *Result) error {
	if !p.tables || p.hosts[0].variables["read_only"] == "ON" {
		return nil // another check finds a read-only server
	}
	table := "`" + p.prefix + "record`"
	var lacks []string
	for right, statement := range map[string]string{
		"INSERT": `INSERT INTO TABLE SELECT * FROM TABLE WHERE false`, "DELETE": `DELETE FROM TABLE WHERE false`,
		"UPDATE": `UPDATE TABLE SET state = state WHERE false`,
	} {
		rows, err := p.hosts[0].db.QueryContext(ctx, "EXPLAIN "+strings.ReplaceAll(statement, "TABLE", table))
		var refused *driver.MySQLError
		switch {
		case errors.As(err, &refused) && slices.Contains(deniedMySQL, refused.Number):
			lacks = append(lacks, right)
		case err != nil:
			return err
		default:
			_ = rows.Close() // the plan does not matter
		}
	}
	slices.Sort(lacks)
	if len(lacks) > 0 {
		r.find(Broken, "GRANT SELECT, INSERT, UPDATE, DELETE on the database of the store, as docs/mysql.md says",
			"the user %s may not %s in %s", user, strings.Join(lacks, ", "), table)
	}
	return nil
}

func grantsMySQL(ctx context.Context, db *sql.DB) (grants []string, err error) {
	rows, err := db.QueryContext(ctx, `SHOW GRANTS`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var grant string
		if err := rows.Scan(&grant); err != nil {
			return nil, err
		}
		grants = append(grants, grant)
	}
	return grants, rows.Err()
}
