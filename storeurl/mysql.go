package storeurl

import (
	"context"
	"errors"
	"strings"

	"github.com/onceward/onceward/store/mysql"
)

func openMySQL(ctx context.Context, at *Location, o options) (*Database, error) {
	options := at.tablesMySQL()
	if o.logger != nil {
		options = append(options, mysql.WithLogger(o.logger))
	}
	if o.manual {
		options = append(options, mysql.WithManualMigration())
	}
	if o.readOnly {
		options = append(options, mysql.WithReadOnly())
	}
	if at.SyncReplicasOnly {
		options = append(options, mysql.WithSyncReplicasOnly())
	}
	url := foundRows(at.URL)
	store, err := mysql.Open(ctx, url, options...)
	if err != nil {
		return nil, err
	}
	reads, err := mysql.OpenDB(url)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	reads.SetMaxOpenConns(maxReads)
	reads.SetMaxIdleConns(maxReads)
	return &Database{
		Store: store, engine: MySQL, reads: reads, owned: true,
		countColumns: `SELECT count(*) FROM information_schema.columns
			WHERE table_schema = DATABASE() AND table_name = ? AND column_name = ?`,
	}, nil
}

// foundRows adds a parameter to a URL, unless the URL sets it, so that one handler works with several databases: a row
// that an UPDATE finds counts as affected even if the UPDATE does not change it, as on the other databases.
func foundRows(url string) string {
	const parameter = "clientFoundRows="
	_, query, has := strings.Cut(url, "?")
	switch {
	case strings.Contains("&"+query, "&"+parameter):
		return url
	case has:
		return url + "&" + parameter + "true"
	default:
		return url + "?" + parameter + "true"
	}
}

// tablesMySQL returns the options for the names of the tables.
func (at *Location) tablesMySQL() (with []mysql.Option) {
	if at.Prefix != "" {
		with = append(with, mysql.WithTablePrefix(at.Prefix))
	}
	return with
}
