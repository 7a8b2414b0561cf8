package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	// The driver under the name by which package database/sql knows it.
	_ "github.com/go-sql-driver/mysql"
	"github.com/onceward/onceward/internal/servers"
)

// mariadbServer is the MariaDB that the contenders share.
type mariadbServer struct {
	*servers.MariaDBServer
	admin *sql.DB
	// about says what the figures hold for: the version and the settings that matter.
	about string
	// databases counts those that were made, so that each has a name of its own.
	databases int
}

// mariadbSettings are those of a server with memory enough for what is measured. The log is large, so that no turn
// meets a checkpoint more often than another. All ways have the same isolation. Tests do without.
var mariadbSettings = []string{
	"innodb-buffer-pool-size=1G", "innodb-log-file-size=1G", "transaction-isolation=READ-COMMITTED",
}

// mariadbTold are the settings that the report names.
const mariadbTold = `SHOW VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'innodb_buffer_pool_size',
	'innodb_log_file_size', 'log_bin', 'sync_binlog')`

// openMariaDBServer starts the server, with more settings if the measurement needs them.
func openMariaDBServer(ctx context.Context, settings ...string) (*mariadbServer, error) {
	server, err := servers.StartMariaDB(ctx, append(mariadbSettings, settings...)...)
	if err != nil {
		return nil, err
	}
	s := &mariadbServer{MariaDBServer: server}
	if s.admin, err = sql.Open("mysql", server.DSN("")); err != nil {
		return nil, err
	}
	return s, s.describe(ctx)
}

// describe notes the settings, and refuses a server that does not write to the disk what it says it has written.
func (s *mariadbServer) describe(ctx context.Context) error {
	settings, err := s.pairs(ctx, mariadbTold)
	if err != nil {
		return err
	}
	if flush := settings["innodb_flush_log_at_trx_commit"]; flush != "1" {
		return fmt.Errorf("the server has innodb_flush_log_at_trx_commit=%s: it has to be 1 for figures that mean something",
			flush)
	}
	var version string
	if err := s.admin.QueryRowContext(ctx, `SELECT VERSION()`).Scan(&version); err != nil {
		return err
	}
	s.about = "MariaDB " + strings.SplitN(version, "-", 2)[0]
	for _, name := range []string{
		"innodb_flush_log_at_trx_commit", "innodb_buffer_pool_size", "innodb_log_file_size", "log_bin", "sync_binlog",
	} {
		s.about += fmt.Sprintf(", %s=%s", name, settings[name])
	}
	return nil
}

// pairs runs a SHOW of names and values.
func (s *mariadbServer) pairs(ctx context.Context, query string) (pairs map[string]string, err error) {
	rows, err := s.admin.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	pairs = make(map[string]string)
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		pairs[strings.ToLower(name)] = value
	}
	return pairs, rows.Err()
}

func (s *mariadbServer) close() error { return s.admin.Close() }

// mariadbSite is where a way works: a database of its own, and a pool that works in it.
type mariadbSite struct {
	server   *mariadbServer
	database string
	pool     *sql.DB
	callers  int
	// rows is how many payments, and how many records, a way begins with.
	rows int64
}

// interpolated makes a statement with arguments one round trip. The driver as it comes prepares it first, and so takes
// two.
const interpolated = "interpolateParams=true"

// openMariaDBSite makes a fresh database and a pool with a connection for each caller, all of them established.
func openMariaDBSite(ctx context.Context, e *engines, parameters string) (site *mariadbSite, err error) {
	if e.mariadb == nil {
		if e.mariadb, err = openMariaDBServer(ctx); err != nil {
			return nil, err
		}
	}
	return e.mariadb.open(ctx, e.callers, e.rows, parameters)
}

func (s *mariadbServer) open(
	ctx context.Context, callers int, rows int64, parameters string,
) (site *mariadbSite, err error) {
	s.databases++
	site = &mariadbSite{
		server: s, database: fmt.Sprintf("onceward_bench_%d", s.databases), callers: callers, rows: rows,
	}
	if _, err := s.admin.ExecContext(ctx, `CREATE DATABASE `+site.database); err != nil {
		return nil, err
	}
	if site.pool, err = sql.Open("mysql", s.DSN(site.database)+"?"+parameters); err != nil {
		return nil, err
	}
	site.pool.SetMaxOpenConns(poolFor(callers))
	site.pool.SetMaxIdleConns(callers)
	return site, nil
}

// url is where the store finds the database.
func (site *mariadbSite) url() string {
	return "mysql://root@" + site.server.Addr() + "/" + site.database
}

// leave closes what the way has opened, in this order, and removes the database.
func (site *mariadbSite) leave(others ...func() error) func() error {
	return func() (err error) {
		for _, closeOther := range append(others, site.pool.Close) {
			err = errors.Join(err, closeOther())
		}
		_, dropped := site.server.admin.ExecContext(context.Background(), `DROP DATABASE `+site.database)
		return errors.Join(err, dropped)
	}
}

// exec runs statements outside of any measurement, one after the other.
func (site *mariadbSite) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := site.pool.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// expect makes sure that a query finds the number that the measurement rests on.
func (site *mariadbSite) expect(ctx context.Context, want int64, query string) error {
	var n int64
	err := site.pool.QueryRowContext(ctx, query).Scan(&n)
	if err == nil && n != want {
		err = fmt.Errorf("%s found %d, want %d", query, n, want)
	}
	return err
}
