package main

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
)

// The work that is protected, or not: every contender does the same.
const (
	mariadbPayments = `CREATE TABLE payment (
		id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, customer BIGINT NOT NULL, reference VARCHAR(100) NOT NULL,
		amount BIGINT NOT NULL, detail VARCHAR(200) NOT NULL, created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
		KEY customer (customer, created_at)) ENGINE = InnoDB`
	mariadbInsertPayment = `INSERT INTO payment (customer, reference, amount, detail) VALUES (?, ?, ?, ?)`
	mariadbFillPayments  = `INSERT INTO payment (customer, reference, amount, detail)
		SELECT seq %% %d, 'ORD-2024-000184', 18497, 'card tok_1MzxLq2eZvKYlo2CqQTfYQ4B' FROM seq_1_to_%d`
	countMariaDBPayments = `SELECT COUNT(*) FROM payment`
)

// insertMariaDBPayment is the work.
func insertMariaDBPayment(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, mariadbInsertPayment, rand.N(accounts), businessRow[0], businessRow[1], businessRow[2])
	return err
}

// createPayments makes the table of the business.
func (site *mariadbSite) createPayments(ctx context.Context) error {
	return site.exec(ctx, mariadbPayments, fmt.Sprintf(mariadbFillPayments, accounts, site.rows))
}

// checkPayments makes sure that the work was done once for each operation.
func (site *mariadbSite) checkPayments(ctx context.Context, done int64) error {
	return site.expect(ctx, done+site.rows, countMariaDBPayments)
}

// inTx runs a transaction: BEGIN, the statements and COMMIT, each a round trip.
func (site *mariadbSite) inTx(ctx context.Context, work func(context.Context, *sql.Tx) error) error {
	tx, err := site.pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := work(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// openMariaDBPlain is the business without protection.
func openMariaDBPlain(ctx context.Context, e *engines) (*arena, error) {
	site, err := openMariaDBSite(ctx, e, interpolated)
	if err != nil {
		return nil, err
	}
	return &arena{
		operate: func(ctx context.Context) error { return site.inTx(ctx, insertMariaDBPayment) },
		check:   site.checkPayments,
		close:   site.leave(),
	}, site.createPayments(ctx)
}

// The table of a textbook, and its statements: the key is inserted first, in progress, by which a duplicate waits and
// is then refused, and updated with the answer last.
const (
	mariadbCreateKeys = `CREATE TABLE idempotency_key (
		id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, scope VARCHAR(255) NOT NULL, idempotency_key VARCHAR(255) NOT NULL,
		request_hash CHAR(64) NOT NULL, status VARCHAR(20) NOT NULL, response_code INT, response_headers JSON,
		response_body JSON, created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), expires_at DATETIME(6) NOT NULL,
		UNIQUE KEY scope (scope, idempotency_key), KEY expires_at (expires_at)) ENGINE = InnoDB`
	mariadbFillKeys = `INSERT INTO idempotency_key (scope, idempotency_key, request_hash, status, response_code,
			response_headers, response_body, expires_at)
		SELECT 'alice', UUID(), SHA2(seq, 256), 'completed', 201, '` + textbookHeaders + `', '` + answer + `',
			NOW(6) + INTERVAL 1 DAY FROM seq_1_to_%d`
	mariadbInsertKey = `INSERT INTO idempotency_key (scope, idempotency_key, request_hash, status, expires_at)
		VALUES (?, ?, ?, 'in progress', NOW(6) + INTERVAL 1 DAY)`
	mariadbUpdateKey = `UPDATE idempotency_key SET status = 'completed', response_code = ?, response_headers = ?,
		response_body = ? WHERE id = ?`
	countMariaDBKeys = `SELECT COUNT(*) FROM idempotency_key WHERE status = 'completed'`
	textbookHeaders  = `{"Content-Type": "` + contentType + `", "Location": "` + location + `"}`
)

// openMariaDBTextbook is the textbook in one transaction, with a round trip for each step.
func openMariaDBTextbook(parameters string) func(context.Context, *engines) (*arena, error) {
	return func(ctx context.Context, e *engines) (*arena, error) {
		site, err := openMariaDBSite(ctx, e, parameters)
		if err != nil {
			return nil, err
		}
		return &arena{
			operate: func(ctx context.Context) error { return site.inTx(ctx, insertFirst) },
			check: func(ctx context.Context, done int64) error {
				return errors.Join(site.expect(ctx, done+site.rows, countMariaDBKeys), site.checkPayments(ctx, done))
			},
			close: site.leave(),
		}, errors.Join(site.createPayments(ctx), site.exec(ctx, mariadbCreateKeys, fmt.Sprintf(mariadbFillKeys, site.rows)))
	}
}

// insertFirst does the business between the statements of the textbook.
func insertFirst(ctx context.Context, tx *sql.Tx) error {
	r := reservation(newKey())
	inserted, err := tx.ExecContext(ctx, mariadbInsertKey, r.Scope, r.Key, hex.EncodeToString(r.Fingerprints[0].Sum[:]))
	if err != nil {
		return err
	}
	id, err := inserted.LastInsertId()
	if err != nil {
		return err
	}
	if err := insertMariaDBPayment(ctx, tx); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, mariadbUpdateKey, http.StatusCreated, textbookHeaders, answer, id)
	return err
}

// The bare way shows what of the store's cost is that of its statements: the same ones, on the same tables, in as many
// round trips. It decides nothing, and survives nothing.
const (
	bareNow   = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`
	bareClaim = `SELECT l.name FROM onceward_lock l WHERE l.name = ? FOR UPDATE NOWAIT;
		INSERT INTO onceward_lock (name, number) VALUES (?, ` + bareNow + `) ON DUPLICATE KEY UPDATE number = ` + bareNow + `;
		SELECT l.number, @@global.read_only, r.attempt, r.revision, r.state, r.due, r.created_at, r.settled_at, r.record,
			r.content
		FROM onceward_lock l LEFT JOIN onceward_record r ON r.hash = ? WHERE l.name = ?;
		SAVEPOINT onceward_begun`
	bareFinish = `RELEASE SAVEPOINT onceward_begun; DELETE FROM onceward_lock WHERE name = ?;
		INSERT INTO onceward_record (hash, attempt, revision, state, due, created_at, settled_at, record, content)
		VALUES (?, 1700000000000000, 0, 20, LAST_INSERT_ID(` + bareNow + ` + 86400000000), ` + bareNow + `, ` + bareNow + `,
			?, NULL);
		SELECT 1 + 9223372036854775807 * COALESCE(MAX(value) >= 1700000000000000, 1) FROM onceward_meta
		WHERE name = 'max_removed_attempt'; COMMIT`
)

// bareSession is the session of the bare way, as the store has it.
const bareSession = "?multiStatements=true&autocommit=0&tx_isolation=%27READ-COMMITTED%27&"

// openMariaDBBare is the claim, one insert and the answer by bare statements.
func openMariaDBBare(ctx context.Context, e *engines) (*arena, error) {
	site, st, err := openMariaDBStore(ctx, e, openMariaDB)
	if err != nil {
		return nil, err
	}
	if err := st.Close(); err != nil {
		return nil, err
	}
	pool, err := sql.Open("mysql", site.server.DSN(site.database)+bareSession+interpolated)
	if err != nil {
		return nil, err
	}
	pool.SetMaxIdleConns(site.callers)
	var record []byte
	err = site.pool.QueryRowContext(ctx, `SELECT record FROM onceward_record LIMIT 1`).Scan(&record)
	return &arena{
		operate: func(ctx context.Context) error { return barely(ctx, pool, record) },
		check:   site.checkPayments,
		close:   site.leave(pool.Close),
	}, err
}

// barely does the business between the bare statements.
func barely(ctx context.Context, pool *sql.DB, record []byte) error {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	hash := []byte(newKey())[:16]
	if _, err := conn.ExecContext(ctx, bareClaim, hash, hash, hash, hash); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, mariadbInsertPayment, rand.N(accounts), businessRow[0], businessRow[1], businessRow[2])
	if err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, bareFinish, hash, hash, record)
	return err
}
