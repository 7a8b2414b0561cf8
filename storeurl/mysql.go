package storeurl

import (
	"context"
	"errors"
	"strings"

	"github.com/onceward/onceward/internal/wrap"
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
	url := forHandlers(at.URL)
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
		Store: wrap.New(store, nil), engine: MySQL, reads: reads, owned: true,
		countColumns: `SELECT count(*) FROM information_schema.columns
			WHERE table_schema = DATABASE() AND table_name = ? AND column_name = ?`,
	}, nil
}

// forHandlers adds what makes one handler serve several databases, unless the URL says otherwise: a row that an UPDATE
// has found counts as affected, as elsewhere, also if it was the same before; and a statement with parameters is one
// round trip.
func forHandlers(url string) string {
	for _, parameter := range []string{"clientFoundRows", "interpolateParams"} {
		if _, query, _ := strings.Cut(url, "?"); strings.Contains("&"+query, "&"+parameter+"=") {
			continue
		}
		separator := "?"
		if strings.Contains(url, "?") {
			separator = "&"
		}
		url += separator + parameter + "=true"
	}
	return url
}

// tablesMySQL says what the tables are called.
func (at *Location) tablesMySQL() (with []mysql.Option) {
	if at.Prefix != "" {
		with = append(with, mysql.WithTablePrefix(at.Prefix))
	}
	return with
}
