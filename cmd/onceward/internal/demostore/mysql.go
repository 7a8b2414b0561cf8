package demostore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	driver "github.com/go-sql-driver/mysql"

	"github.com/onceward/onceward/demo/rehearsal"
	"github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/storeurl"
)

// prepareMySQL creates a database on MySQL or MariaDB.
func prepareMySQL(ctx context.Context, chosen, database string) (rehearsal.Place, error) {
	at, err := storeurl.Parse(chosen)
	if err != nil {
		return rehearsal.Place{}, err
	}
	server := withDatabase(at.URL, "")
	place := rehearsal.Place{
		URL: withDatabase(chosen, database), Kind: "MySQL", Where: "the database " + database,
		Drop: func(ctx context.Context) error { return executeMySQL(ctx, server, "DROP DATABASE "+database) },
	}
	if err := executeMySQL(ctx, server, "CREATE DATABASE IF NOT EXISTS "+database); err != nil {
		return rehearsal.Place{}, databaseError(err)
	}
	return place, nil
}

// withDatabase returns the URL of another database on the same
// servers. [url.Parse] cannot read a URL with several hosts.
func withDatabase(text, database string) string {
	place, query, found := strings.Cut(text, "?")
	scheme, rest, _ := strings.Cut(place, "://")
	authority, _, _ := strings.Cut(rest, "/")
	place = scheme + "://" + authority + "/" + database
	if found {
		place += "?" + query
	}
	return place
}

// accessDenied is the error number of MySQL for a user without rights to a database.
const accessDenied = 1044

// databaseError adds advice to the error of a database that could not be created.
func databaseError(err error) error {
	var refused *driver.MySQLError
	if errors.As(err, &refused) && refused.Number == accessDenied {
		return fmt.Errorf("the demo makes a database of its own on the server of --store, and its user may not: "+
			"GRANT ALL ON `onceward_demo_%%`.* TO it: %w", err)
	}
	return fmt.Errorf("the server of --store cannot be used: %w", err)
}

func executeMySQL(ctx context.Context, server, statement string) error {
	db, err := mysql.OpenDB(server)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, statement)
	return errors.Join(err, db.Close())
}
