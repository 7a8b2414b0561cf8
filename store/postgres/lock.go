package postgres

import "context"

// Transactions exclude each other with the advisory locks of the server, which are released when their transaction ends
// in any way. Records have locks of one number. Names and lanes have locks of two numbers, which are apart from the
// locks of one number that applications often use.

// tryLock returns an SQL expression that takes a lock of one number if the lock is free. Its value is
// whether the lock was free.
func tryLock(key string) string { return `pg_try_advisory_xact_lock(` + key + `)` }

// takeLock returns an SQL expression that waits for a lock of one number, takes it, and is true. The server's function
// returns void, which is empty as a text.
func takeLock(key string) string { return `pg_advisory_xact_lock(` + key + `)::text = ''` }

// takePair does what takeLock does, for a lock of two numbers, which are the halves of the key.
func takePair(key string) string {
	return `pg_advisory_xact_lock((` + key + ` >> 32)::integer, (` + key + ` << 32 >> 32)::integer)::text = ''`
}

// lockHeld reads whether a transaction is in flight, without touching its lock.
const lockHeld = `SELECT EXISTS (SELECT FROM pg_locks
	WHERE locktype = 'advisory' AND granted AND objsubid = 1
	AND classid = (($1::bigint >> 32) & 4294967295)::oid AND objid = ($1::bigint & 4294967295)::oid
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`

// lockPromotion lets one session at a time promote messages, and is the first statement of its transaction. No lock
// of a lane has a second number that is zero.
const lockPromotion = `SELECT pg_advisory_xact_lock('@outbox'::regclass::oid::integer, 0)`

// lockHeldBy reports whether a transaction holds the lock of a record.
func (s *Store) lockHeldBy(ctx context.Context, hash [16]byte) (held bool, err error) {
	err = s.own.QueryRow(ctx, lockHeld, s.lockKey(hash)).Scan(&held)
	return held, err
}
