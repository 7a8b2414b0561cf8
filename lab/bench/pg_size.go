package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/onceward/onceward/store"
)

// The table of a textbook, in the manner of most libraries and of many articles.
const (
	createTextbook = `CREATE TABLE idempotency_key (
			id bigserial PRIMARY KEY,
			scope text NOT NULL,
			key text NOT NULL,
			method text NOT NULL,
			path text NOT NULL,
			request_hash text NOT NULL,
			status text NOT NULL,
			response_code int,
			response_headers jsonb,
			response_body jsonb,
			locked_at timestamptz,
			created_at timestamptz NOT NULL DEFAULT now(),
			updated_at timestamptz NOT NULL DEFAULT now(),
			expires_at timestamptz NOT NULL,
			UNIQUE (scope, key));
		CREATE INDEX idempotency_key_expires_at ON idempotency_key (expires_at)`
	// fillTextbook spreads the expiry over a day, as a day of requests would for one million keys.
	fillTextbook = `INSERT INTO idempotency_key
			(scope, key, method, path, request_hash, status, response_code, response_headers, response_body, expires_at)
		SELECT 'acct_1042', gen_random_uuid()::text, 'POST', '/payments', encode(sha256(int4send(number)), 'hex'), 'completed', 201,
			'{"Content-Type": "application/json"}', '` + answer + `', now() + number * interval '86.4 milliseconds'
		FROM generate_series(1, $1::int) number`
)

// The layouts of a table of keys.
const (
	layoutTextbook      = "textbook with JSONB, three indexes"
	layoutArticle       = "parameters in JSONB, by user and key"
	layoutTransactional = "Onceward: transactional"
)

// layout is a way to keep completed keys.
type layout struct {
	name string
	// fill writes so many keys, each with its answer.
	fill func(ctx context.Context, s *pgSite, keys int) error
	// rows counts them.
	rows string
}

var layouts = []layout{
	{layoutTextbook, fillBySQL(createTextbook, fillTextbook), `SELECT count(*) FROM idempotency_key`},
	{layoutArticle, fillBySQL(createArticle, fillArticle), `SELECT count(*) FROM idempotency_keys`},
	{layoutTransactional, fillByTransact, pgRecords},
}

const (
	// defaultKeys is how many rows the tables get whose size is compared.
	defaultKeys = 1_000_000
	// storeKeys is how many of them the store itself writes: it takes as long for each as a caller would.
	storeKeys = 100_000
)

// measureSizes fills the layouts with the same keys and answers, and compares their bytes on disk.
func (s *pgServer) measureSizes(ctx context.Context, o *options, r *report) error {
	const name = "postgres-bytes-per-key"
	if !o.wants(name) {
		return nil
	}
	keys := o.keys
	if keys == 0 {
		keys = defaultKeys
	}
	t := &table{
		title: fmt.Sprintf("Bytes a key on disk, each with a response of %d bytes", len(answer)),
		head:  []string{"layout", "keys", "table", "indexes", "all"},
	}
	sizes := make(map[string]float64)
	for _, l := range layouts {
		bytes, err := s.sizeOf(ctx, &l, keys)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		sizes[l.name] = bytes.table + bytes.indexes
		t.add(l.name, grouped(float64(keys)), grouped(bytes.table), grouped(bytes.indexes), grouped(sizes[l.name]))
	}
	r.keep(t)
	r.judge(name, sizes[layoutTransactional]/min(sizes[layoutTextbook], sizes[layoutArticle]))
	return nil
}

// keySize is the bytes that a key takes.
type keySize struct{ table, indexes float64 }

// sizeOf fills a layout. How a commit waits has no part in the size, so here none does.
func (s *pgServer) sizeOf(ctx context.Context, l *layout, keys int) (size keySize, err error) {
	err = s.visit(ctx, manyCallers, lazily, func(site *pgSite) error {
		if err := l.fill(ctx, site, keys); err != nil {
			return err
		}
		if err := site.expect(ctx, int64(keys), l.rows); err != nil {
			return err
		}
		size, err = site.size(ctx, keys)
		return err
	})
	return size, err
}

// size adds up all tables of the schema, with what belongs to them.
func (site *pgSite) size(ctx context.Context, keys int) (size keySize, err error) {
	err = site.pool.QueryRow(ctx, `SELECT sum(pg_table_size(c.oid))::float8 / $2, sum(pg_indexes_size(c.oid))::float8 / $2
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'm')`, site.schema, float64(keys)).Scan(&size.table, &size.indexes)
	return size, err
}

// fillBySQL returns a way to fill that is two statements.
func fillBySQL(create, insert string) func(context.Context, *pgSite, int) error {
	return func(ctx context.Context, s *pgSite, keys int) error {
		if _, err := s.pool.Exec(ctx, create); err != nil {
			return err
		}
		_, err := s.pool.Exec(ctx, insert, keys)
		return err
	}
}

// fillByTransact writes keys through the store, one transaction for each. Past [storeKeys] it copies what the store has
// written, as the other layouts are filled: by one statement, with an expiry that is spread over a day.
func fillByTransact(ctx context.Context, s *pgSite, keys int) error {
	st, err := openStore(ctx, s)
	if err != nil {
		return err
	}
	written := min(keys, storeKeys)
	_, err = repeatTimes(manyCallers, written, func(context.Context) error {
		// The account and the header are those that the other layouts have.
		r, done := reservation(newKey()), completion()
		r.Scope, done.Response.Header = "acct_1042", done.Response.Header[:1]
		return transactOnce(ctx, st, r, done, noWork, store.DecisionExecute)
	})
	if err := errors.Join(err, st.Close()); err != nil {
		return err
	}
	return cloneRecords(ctx, s, keys-written, false)
}
