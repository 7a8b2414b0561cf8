package doctor_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/storeurl"
)

// newMySQL is a database with the tables of the store, and the URL of a user of its own for it.
func newMySQL(t *testing.T, s *servers.MariaDBServer) (address string) {
	t.Helper()
	address = s.DatabaseURL(t)
	if err := storeurl.Migrate(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Trim(parsed.Path, "/")
	mustMySQL(t, s, "CREATE USER '"+name+"'@'%' IDENTIFIED BY 'password'; GRANT SELECT, INSERT, UPDATE, DELETE ON `"+name+
		"`.* TO '"+name+"'@'%'")
	t.Cleanup(func() { mustMySQL(t, s, "DROP USER '"+name+"'@'%'") })
	parsed.User = url.UserPassword(name, "password")
	return parsed.String()
}

func mustMySQL(t *testing.T, s *servers.MariaDBServer, statements string) {
	t.Helper()
	if err := s.Exec(context.WithoutCancel(t.Context()), statements); err != nil { // also when the test ends
		t.Fatal(err)
	}
}

// inMySQL writes a statement about a table of the database that a URL names.
func inMySQL(address, format string) string {
	parsed, _ := url.Parse(address) // it was parsed before
	return strings.ReplaceAll(format, "@", "`"+strings.Trim(parsed.Path, "/")+"`.")
}

func TestHealthyMySQL(t *testing.T) {
	t.Parallel()
	wantHealthy(t, examine(t, newMySQL(t, servers.MariaDB(t)), doctor.Config{}))
}

// TestLiesOfMySQL plants what breaks promises, one after the other, on a server of its own.
func TestLiesOfMySQL(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "TestHealthyMySQL runs each check")
	s := servers.NewMariaDB(t)
	address := newMySQL(t, s)
	for _, test := range []struct {
		name, plant, mend string
		want              lie
	}{
		{
			"commits that are not flushed", `SET GLOBAL innodb_flush_log_at_trx_commit = 2`,
			`SET GLOBAL innodb_flush_log_at_trx_commit = 1`,
			lie{"mysql/durability", doctor.Broken, "innodb_flush_log_at_trx_commit is 2", nil},
		},
		{
			"statements that are cut off", `SET GLOBAL max_statement_time = 2`, `SET GLOBAL max_statement_time = 0`,
			lie{"mysql/timeouts", doctor.Weak, "max_statement_time is 2 s", nil},
		},
		{
			"small packets", `SET GLOBAL max_allowed_packet = 1048576`, `SET GLOBAL max_allowed_packet = 16777216`,
			lie{"mysql/packet", doctor.Weak, "1048576 bytes", nil},
		},
		{
			"few connections", `SET GLOBAL max_connections = 12`, `SET GLOBAL max_connections = 300`,
			lie{"mysql/connections", doctor.Weak, "12 connections may be open", nil},
		},
		{
			"a trigger", `CREATE TRIGGER @slow BEFORE INSERT ON @onceward_record FOR EACH ROW SET @x = 1`,
			`DROP TRIGGER @slow`,
			lie{"mysql/tables", doctor.Weak, "has 1 triggers", nil},
		},
		{
			"no primary key", `ALTER TABLE @onceward_late_completion MODIFY number BIGINT NOT NULL, DROP PRIMARY KEY`,
			`ALTER TABLE @onceward_late_completion ADD PRIMARY KEY (number), MODIFY number BIGINT NOT NULL AUTO_INCREMENT`,
			lie{"mysql/tables", doctor.Broken, "onceward_late_completion has no primary key", nil},
		},
		{
			"another engine", `ALTER TABLE @onceward_audit ENGINE = MyISAM`, `ALTER TABLE @onceward_audit ENGINE = InnoDB`,
			lie{"mysql/tables", doctor.Broken, "of the engine MyISAM", nil},
		},
		{
			"tables of a newer version", `INSERT INTO @onceward_schema (version) VALUES (99)`,
			`DELETE FROM @onceward_schema WHERE version = 99`,
			lie{"mysql/schema", doctor.Broken, "99", nil},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			plant, mend := inMySQL(address, test.plant), inMySQL(address, test.mend)
			if strings.Contains(test.plant, "TRIGGER") {
				plant = strings.Replace(plant, inMySQL(address, "@x"), "@x", 1)
			}
			mustMySQL(t, s, plant)
			defer mustMySQL(t, s, mend)
			wantFound(t, examine(t, address, doctor.Config{}), test.want)
		})
	}
	t.Run("a user that may only read", func(t *testing.T) {
		parsed, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		change := func(how, to string) {
			mustMySQL(t, s, inMySQL(address, how+" INSERT, UPDATE, DELETE ON @* "+to+" '"+parsed.User.Username()+"'"))
		}
		change("REVOKE", "FROM")
		defer change("GRANT", "TO")
		wantFound(t, examine(t, address, doctor.Config{}),
			lie{"mysql/privileges", doctor.Broken, "may not DELETE, INSERT, UPDATE", nil})
	})
	t.Run("a user with all rights", func(t *testing.T) {
		parsed, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		parsed.User = url.User("root")
		wantFound(t, examine(t, parsed.String(), doctor.Config{}),
			lie{"mysql/privileges", doctor.Weak, "ALL PRIVILEGES on the whole server", nil})
	})
	t.Run("a read-only server", func(t *testing.T) {
		mustMySQL(t, s, `SET GLOBAL read_only = ON`)
		defer mustMySQL(t, s, `SET GLOBAL read_only = OFF`)
		report := examine(t, address, doctor.Config{})
		if found := report.Findings(); len(found) != 1 || found[0].Check != "mysql/primary" {
			t.Errorf("it says:\n%s", text(report))
		}
	})
	t.Run("no tables, and a host that is gone", func(t *testing.T) {
		parsed, err := url.Parse(s.DatabaseURL(t))
		if err != nil {
			t.Fatal(err)
		}
		two := strings.Replace(parsed.String(), parsed.Host, parsed.Host+",127.0.0.1:1", 1)
		report := examine(t, two, doctor.Config{})
		if left := report.NotChecked(); len(left) != 3 || !strings.Contains(left[0].Seen, "no tables yet") {
			t.Errorf("not checked is %+v", left)
		}
		if !strings.Contains(text(report), "127.0.0.1:1 does not answer") {
			t.Errorf("it says:\n%s", text(report))
		}
	})
}
