package mysql_test

import (
	"database/sql"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward/internal/servers"
)

// ground is a database with the tables of a store and a business table. To make one and to remove it costs a server
// more than most tests of the suite do, and the suite wants hundreds: so one test has it after another, each with a
// store of its own, and each finds it as if it were new.
type ground struct {
	// url is for the stores.
	url, parameters string
	// admin looks past every store.
	admin *sql.DB
}

// grounds are those of one run of the suite.
type grounds struct {
	run testing.TB
	// url makes a database, and parameters are those of its stores' URLs and of the application's.
	url        func(t testing.TB) string
	parameters string
	mu         sync.Mutex
	idle       []*ground
}

// take hands out a ground that is empty, and takes it back at the end of the test.
func (g *grounds) take(t testing.TB) *ground {
	t.Helper()
	g.mu.Lock()
	var taken *ground
	if len(g.idle) > 0 {
		taken, g.idle = g.idle[0], g.idle[1:]
	}
	g.mu.Unlock()
	if taken == nil {
		taken = newGround(t, g.run, g.url(g.run), g.parameters)
	} else {
		taken.clear(t)
	}
	t.Cleanup(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.idle = append(g.idle, taken)
	})
	return taken
}

// newGround makes a ground that lasts as long as the run.
func newGround(t, run testing.TB, url, parameters string) *ground {
	t.Helper()
	g := &ground{url: url, parameters: parameters, admin: openAdmin(run, url, parameters)}
	openStore(t, url) // makes the tables
	exec(t, g.admin, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	return g
}

// firstMoment is when each test begins, in microseconds since 1970.
const firstMoment = 1767323045000000

// clear makes a ground as if it were new: without rows, and without the tables that a test has made.
func (g *ground) clear(t testing.TB) {
	t.Helper()
	for _, table := range column(t, g.admin, `SELECT table_name FROM information_schema.tables
		WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'`) {
		switch {
		case table == "onceward_schema":
		case table == "onceward_meta":
			exec(t, g.admin, `UPDATE onceward_meta SET value = 0`)
		case table == "business" || strings.HasPrefix(table, "onceward_"):
			exec(t, g.admin, `DELETE FROM `+table)
		default:
			exec(t, g.admin, "DROP TABLE `"+table+"`")
		}
	}
}

// openAdmin opens a pool past the store, to the first host of a URL.
func openAdmin(t testing.TB, url string, parameters ...string) *sql.DB {
	t.Helper()
	rest := strings.TrimPrefix(url, "mysql://")
	user, rest, _ := strings.Cut(rest, "@")
	hosts, database, _ := strings.Cut(rest, "/")
	host, _, _ := strings.Cut(hosts, ",")
	db, err := sql.Open("mysql", user+"@tcp("+host+")/"+database+"?sql_mode='ANSI'&wsrep_sync_wait=1"+
		strings.Join(parameters, ""))
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// column returns the first column of a query.
func column(t testing.TB, db *sql.DB, statement string, args ...any) (values []string) {
	t.Helper()
	rows, err := db.Query(statement, args...)
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var value string
		must(t, rows.Scan(&value))
		values = append(values, value)
	}
	must(t, rows.Err())
	return values
}

// number returns what a query for one number finds.
func number(t testing.TB, db *sql.DB, statement string, args ...any) (n int) {
	t.Helper()
	must(t, db.QueryRow(statement, args...).Scan(&n))
	return n
}

func exec(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.Exec(statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mariadb makes a database on the server that all tests share.
func mariadb(t testing.TB) string {
	t.Helper()
	return servers.MariaDB(t).DatabaseURL(t)
}
