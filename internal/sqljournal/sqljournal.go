// Package sqljournal is [client.Journal] in SQL, for any database that has UPDATE … RETURNING. A store brings its
// dialect, and the way to its connections.
package sqljournal

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"github.com/onceward/onceward/client"
)

// Querier runs statements: a *sql.DB or a *sql.Tx.
type Querier interface {
	ExecContext(ctx context.Context, statement string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, statement string, args ...any) (*sql.Rows, error)
}

// Config says where a journal is.
type Config struct {
	Dialect
	// Read is for looking.
	Read Querier
	// Write runs one statement that is a transaction of its own.
	Write func(ctx context.Context, f func(q Querier) error) error
	// Update runs f in a transaction, and commits if it returns nil.
	Update func(ctx context.Context, f func(tx *sql.Tx) error) error
}

// Journal is a [client.Journal].
type Journal struct {
	config Config
	sql    statements
}

// Open creates or updates the tables, unless they are up to date, and returns the journal in them. It refuses tables of
// a newer version.
func Open(ctx context.Context, config Config) (*Journal, error) {
	j := &Journal{config: config, sql: config.Dialect.statements()}
	return j, j.migrate(ctx)
}

// Add implements [client.Journal].
func (j *Journal) Add(ctx context.Context, tx *sql.Tx, o *client.Operation) error {
	statement, args := j.Insert(o)
	result, err := tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return fmt.Errorf("add an operation to the journal: %w", err)
	}
	added, err := result.RowsAffected()
	if err == nil && added == 0 {
		err = client.ErrExists
	}
	return err
}

// Insert is the statement that adds an operation, for transactions of other types. It writes no row if there is one of
// that key.
func (j *Journal) Insert(o *client.Operation) (statement string, args []any) {
	return j.sql.add, []any{o.Key, o.Host(), o.Method, o.URL, encodeHeader(o.Header), append([]byte{}, o.Body...)}
}

// DueHosts implements [client.Journal].
func (j *Journal) DueHosts(ctx context.Context) (hosts []string, err error) {
	err = each(ctx, j.config.Read, j.sql.dueHosts, nil, func(rows *sql.Rows) error {
		var host string
		err := rows.Scan(&host)
		hosts = append(hosts, host)
		return err
	})
	return hosts, err
}

// Claim implements [client.Journal].
func (j *Journal) Claim(
	ctx context.Context, host string, limit int, lease time.Duration,
) (claimed []client.Claimed, err error) {
	err = j.config.Write(ctx, func(q Querier) error {
		claimed = nil // it may be called again
		return each(ctx, q, j.sql.claim, []any{host, limit, lease.Microseconds()}, func(rows *sql.Rows) error {
			one, err := scan(rows)
			claimed = append(claimed, one)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return claimed, nil
}

// Settle implements [client.Journal].
func (j *Journal) Settle(ctx context.Context, l client.Lease, s client.Settlement) error {
	a := &s.Answer
	return j.change(ctx, client.ErrFenced, j.sql.settle,
		int(s.State), flag(s.Told), s.After.Microseconds(), plainText(s.Error),
		a.Status, encodeHeader(a.Header), append([]byte{}, a.Body...), flag(a.Truncated),
		s.KeptFor.Microseconds(), l.Key, l.Token)
}

// Get implements [client.Journal].
func (j *Journal) Get(ctx context.Context, key string) (client.Operation, error) {
	found, err := j.read(ctx, j.sql.get, key)
	switch {
	case err != nil:
		return client.Operation{}, err
	case len(found) == 0:
		return client.Operation{}, client.ErrNotFound
	}
	return found[0], nil
}

// List implements [client.Journal].
func (j *Journal) List(ctx context.Context, f client.Filter) ([]client.Operation, error) {
	chosen := 0 // a bit for each state
	for _, state := range f.States {
		chosen |= 1 << state
	}
	if len(f.States) == 0 {
		chosen = 1<<client.StatePending | 1<<client.StateAnswered | 1<<client.StateUnknown
	}
	statement := j.sql.list
	if f.Open {
		statement = j.sql.listOpen
	}
	return j.read(ctx, statement, f.After, chosen, cmp.Or(f.Limit, 100))
}

// Stats implements [client.Journal].
func (j *Journal) Stats(ctx context.Context) (s client.Stats, err error) {
	err = each(ctx, j.config.Read, j.sql.stats, nil, func(rows *sql.Rows) error {
		var oldest int64
		err := rows.Scan(&s.Pending, &oldest, &s.Unknown)
		s.OldestPending = timeOf(oldest)
		return err
	})
	return s, err
}

// Resolve implements [client.Journal].
func (j *Journal) Resolve(ctx context.Context, key string, answer client.Answer) error {
	return j.change(ctx, client.ErrNotFound, j.sql.resolve,
		answer.Status, encodeHeader(answer.Header), append([]byte{}, answer.Body...), flag(answer.Truncated), key)
}

// Purge implements [client.Journal].
func (j *Journal) Purge(ctx context.Context, age time.Duration, limit int) (purged int, err error) {
	err = j.config.Write(ctx, func(q Querier) error {
		result, err := q.ExecContext(ctx, j.sql.purge, age.Microseconds(), limit)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		purged = int(n)
		return err
	})
	return purged, err
}

// change runs a statement that is to change one row. The error is none if it did not.
func (j *Journal) change(ctx context.Context, none error, statement string, args ...any) error {
	return j.config.Write(ctx, func(q Querier) error {
		result, err := q.ExecContext(ctx, statement, args...)
		if err != nil {
			return err
		}
		changed, err := result.RowsAffected()
		if err == nil && changed == 0 {
			err = none
		}
		return err
	})
}

// read reads operations.
func (j *Journal) read(ctx context.Context, statement string, args ...any) (found []client.Operation, err error) {
	err = each(ctx, j.config.Read, statement, args, func(rows *sql.Rows) error {
		one, err := scan(rows)
		found = append(found, one.Operation)
		return err
	})
	return found, err
}

// each calls f for each row. A statement that writes is committed when its rows have been read.
func each(ctx context.Context, q Querier, statement string, args []any, f func(rows *sql.Rows) error) error {
	rows, err := q.QueryContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	for err == nil && rows.Next() {
		err = f(rows)
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

// scan reads a row of columns.
func scan(rows *sql.Rows) (c client.Claimed, err error) {
	var header, answerHeader []byte
	var told, truncated, created, firstSent, settled, kept, due, now int64
	o := &c.Operation
	err = rows.Scan(&o.Key, &o.Method, &o.URL, &header, &o.Body, &o.State, &told, &o.Attempts, &o.LastError,
		&o.Answer.Status, &answerHeader, &o.Answer.Body, &truncated, &created, &firstSent, &settled, &kept, &due,
		&c.Token, &now)
	if err != nil {
		return c, err
	}
	o.Told, o.Answer.Truncated = told != 0, truncated != 0
	o.CreatedAt, o.FirstSent, o.SettledAt = timeOf(created), timeOf(firstSent), timeOf(settled)
	o.KeptUntil, o.Due, c.Now = timeOf(kept), timeOf(due), timeOf(now)
	o.Header, o.Answer.Header = decodeHeader(header), decodeHeader(answerHeader)
	return c, nil
}

// timeOf is a time that is kept in microseconds, or zero for 0.
func timeOf(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}

func flag(set bool) int {
	if set {
		return 1
	}
	return 0
}

// encodeHeader keeps a header as it goes over the wire, because its values need not be UTF-8.
func encodeHeader(header http.Header) []byte {
	text := bytes.NewBuffer([]byte{})
	_ = header.Write(text) // a buffer takes all
	return text.Bytes()
}

// decodeHeader reads what encodeHeader wrote. It takes whatever else it finds there as far as it goes: an operation with
// a header that cannot be sent must not keep those from being read that are claimed together with it.
func decodeHeader(text []byte) http.Header {
	header := http.Header{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			header.Add(name, textproto.TrimString(value))
		}
	}
	return header
}

// maxError bounds what is kept of an error.
const maxError = 1000

// plainText is a text that every database takes.
func plainText(text string) string {
	text = strings.ReplaceAll(text[:min(len(text), maxError)], "\x00", " ")
	return strings.ToValidUTF8(text, "?")
}
