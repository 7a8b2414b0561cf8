package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
)

// mariadbOpener opens the store in a database.
type mariadbOpener func(ctx context.Context, site *mariadbSite) (*mysql.Store, error)

// openMariaDB opens the store with connections of its own, for handlers too.
func openMariaDB(ctx context.Context, site *mariadbSite) (*mysql.Store, error) {
	return mysql.Open(ctx, site.url(), mysql.WithConnections(site.callers))
}

// openMariaDBBorrowed opens the store with handlers on the pool of the application.
func openMariaDBBorrowed(ctx context.Context, site *mariadbSite) (*mysql.Store, error) {
	return mysql.New(ctx, site.pool, site.url(), mysql.WithConnections(site.callers))
}

// openMariaDBStore opens the store in a database of its own, beside the business.
func openMariaDBStore(ctx context.Context, e *engines, opener mariadbOpener) (*mariadbSite, *mysql.Store, error) {
	site, err := openMariaDBSite(ctx, e, interpolated+"&multiStatements=true")
	if err != nil {
		return nil, nil, err
	}
	st, err := opener(ctx, site)
	if err != nil {
		return nil, nil, err
	}
	return site, st, errors.Join(site.createPayments(ctx), site.fillRecords(ctx, st))
}

// fillRecords makes as many records as there are payments: one by the store, and copies of it under other hashes.
func (site *mariadbSite) fillRecords(ctx context.Context, st *mysql.Store) error {
	if err := transactSQL(ctx, st, noSQLWork); err != nil {
		return err
	}
	return site.cloneRecords(ctx, site.rows-1)
}

// cloneRecords copies a record of the store. Their expiry is spread over a day, as a day of requests would leave it.
func (site *mariadbSite) cloneRecords(ctx context.Context, n int64) error {
	var columns string
	err := site.pool.QueryRowContext(ctx, `SELECT GROUP_CONCAT(column_name) FROM information_schema.columns
		WHERE table_schema = DATABASE() AND table_name = 'onceward_record' AND column_name NOT IN ('hash', 'due')`).
		Scan(&columns)
	if err != nil {
		return err
	}
	return site.exec(ctx, fmt.Sprintf(`INSERT INTO onceward_record (hash, due, %[1]s)
		SELECT UNHEX(MD5(CONCAT(RAND(), seq))), due + seq * (86400000000 DIV %[2]d), %[1]s
		FROM seq_1_to_%[2]d CROSS JOIN (SELECT * FROM onceward_record LIMIT 1) AS one`, columns, n))
}

// mariadbRecords counts the records of the store in the state completed.
const mariadbRecords = `SELECT COUNT(*) FROM onceward_record WHERE state DIV 10 = 2`

// checkRecords makes sure that each operation did the work once and left a completed record.
func (site *mariadbSite) checkRecords(ctx context.Context, done int64) error {
	return errors.Join(site.expect(ctx, done+site.rows, mariadbRecords), site.checkPayments(ctx, done))
}

// noSQLWork is for measurements of the protection alone.
func noSQLWork(context.Context, *sql.Tx) error { return nil }

// transactSQL does work once under a new key, in the transaction of the store.
func transactSQL(ctx context.Context, s store.Transactor, work func(context.Context, *sql.Tx) error) error {
	var failed error
	v, err := s.Transact(ctx, reservation(newKey()), func(ctx context.Context, _ store.Verdict) store.Settlement {
		if failed = work(ctx, onceward.Tx(ctx)); failed != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		return store.Settlement{Action: store.TxCommit, Completion: completion()}
	})
	if failed != nil {
		return failed
	}
	return decided(v, err, store.DecisionExecute)
}

// openMariaDBTransactional is the claim, the business and the stored answer in one transaction.
func openMariaDBTransactional(opener mariadbOpener) func(context.Context, *engines) (*arena, error) {
	return func(ctx context.Context, e *engines) (*arena, error) {
		site, st, err := openMariaDBStore(ctx, e, opener)
		if err != nil {
			return nil, err
		}
		return &arena{
			operate: func(ctx context.Context) error { return transactSQL(ctx, st, insertMariaDBPayment) },
			check:   site.checkRecords,
			close:   site.leave(st.Close),
		}, nil
	}
}

// openMariaDBReserved is the business in a transaction of its own, between reserve and complete.
func openMariaDBReserved(ctx context.Context, e *engines) (*arena, error) {
	site, st, err := openMariaDBStore(ctx, e, openMariaDB)
	if err != nil {
		return nil, err
	}
	return &arena{
		operate: func(ctx context.Context) error {
			return reserveWorkComplete(ctx, st, newKey(), func(ctx context.Context) error {
				return site.inTx(ctx, insertMariaDBPayment)
			})
		},
		check: site.checkRecords,
		close: site.leave(st.Close),
	}, nil
}

// openMariaDBReplay is the replay of keys that are completed, chosen at random.
func openMariaDBReplay(ctx context.Context, e *engines) (*arena, error) {
	site, st, err := openMariaDBStore(ctx, e, openMariaDB)
	if err != nil {
		return nil, err
	}
	keys := newKeys(replayedKeys)
	return &arena{
		operate: func(ctx context.Context) error { return replayOnce(ctx, st, reservation(keys[rand.N(len(keys))])) },
		check: func(ctx context.Context, _ int64) error {
			return site.expect(ctx, site.rows+int64(replayedKeys), mariadbRecords)
		},
		close: site.leave(st.Close),
	}, fill(ctx, st, keys)
}
