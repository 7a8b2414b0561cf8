package main

import (
	"context"
	"crypto/rand"
	"regexp"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
)

// TestOnMySQL: the demo on MariaDB leaves nothing behind there.
func TestOnMySQL(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the demo runs on SQLite and, by TestOnPostgres, on PostgreSQL")
	server := servers.MariaDB(t)
	run := runDemo(t, "--payments", "60", "--seed", "5", "--processes", "2", "--store", server.DatabaseURL(t))
	wantSound(t, run, 60)
	found := regexp.MustCompile(`on MySQL in the database (onceward_demo_\w+)`).FindStringSubmatch(run.Stdout)
	if found == nil {
		t.Fatalf("the demo names no database:\n%s", run.Stdout)
	}
	left, err := server.Query(t.Context(), "SHOW DATABASES LIKE '"+found[1]+"'")
	if err != nil || strings.TrimSpace(left) != "" {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// TestOnMySQLWithoutRights: what the demo says to grant is enough.
func TestOnMySQLWithoutRights(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it is a refusal of the demo on a server")
	server := servers.MariaDB(t)
	user := "demo_" + strings.ToLower(rand.Text())[:8]
	ask := func(statement string) {
		t.Helper()
		if err := server.Exec(context.Background(), statement); err != nil {
			t.Fatal(err)
		}
	}
	ask("CREATE USER " + user + " IDENTIFIED BY 'secret'")
	t.Cleanup(func() { ask("DROP USER " + user) })
	address := "mysql://" + user + ":secret@" + server.Addr() + "/"
	run := runDemo(t, "--payments", "5", "--store", address)
	grant := regexp.MustCompile("GRANT ALL ON `.*`[.][*] TO ").FindString(run.Stderr)
	if run.Code != exitFailed || grant == "" {
		t.Fatalf("exit status %d: %s", run.Code, run.Stderr)
	}
	ask(grant + user)
	if run := runDemo(t, "--payments", "5", "--seed", "5", "--store", address); run.Code != 0 {
		t.Errorf("with what it asked for: exit status %d: %s", run.Code, run.Stderr)
	}
}

// dynamoDBURL names a table of the test's own.
func dynamoDBURL(t *testing.T) string {
	t.Helper()
	s := servers.DynamoDB(t)
	return "dynamodb://" + s.Name(t) + "?region=eu-central-1&endpoint=" + s.URL()
}

// TestOnDynamoDB: the same load and faults on a store without SQL.
func TestOnDynamoDB(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the demo runs on SQLite and, by TestOnPostgres, on PostgreSQL")
	url := dynamoDBURL(t)
	run := runDemo(t, "--payments", "60", "--seed", "5", "--processes", "2", "--store", url)
	wantSound(t, run, 60)
	wantFaults(t, run, "killed, 1 paused past its lease")
	if !regexp.MustCompile(`on DynamoDB in the tables \w+ and \w+_items\.`).MatchString(run.Stdout) {
		t.Errorf("the demo does not name its tables:\n%s", run.Stdout)
	}
	again := runDemo(t, "--payments", "5", "--unprotected", "--store", url)
	if again.Code != exitFailed || !strings.Contains(again.Stderr, "--unprotected needs a database") {
		t.Errorf("unprotected: exit status %d: %s", again.Code, again.Stderr)
	}
}
