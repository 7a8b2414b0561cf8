package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// lockForm is one way to take an advisory lock.
type lockForm struct {
	name, take, try, free string
}

var lockForms = []lockForm{
	{
		"pg_advisory_xact_lock(bigint)", `SELECT pg_advisory_xact_lock($1)`, `SELECT pg_try_advisory_xact_lock($1)`, ``,
	},
	{
		"pg_advisory_xact_lock(integer, integer)",
		`SELECT pg_advisory_xact_lock(($1::bigint >> 32)::integer, ($1::bigint << 32 >> 32)::integer)`,
		`SELECT pg_try_advisory_xact_lock(($1::bigint >> 32)::integer, ($1::bigint << 32 >> 32)::integer)`, ``,
	},
	{
		"pg_advisory_lock(bigint)", `SELECT pg_advisory_lock($1)`, `SELECT pg_try_advisory_lock($1)`,
		`SELECT pg_advisory_unlock_all()`,
	},
}

// tryLocks takes each kind of lock on one connection, and tries to take the same lock on another.
func tryLocks(ctx context.Context, p *postgres, r *Result) error {
	pooled, err := p.pooled(ctx)
	if err != nil {
		return err
	}
	var tried []string
	for _, form := range lockForms {
		if form.free != "" && pooled {
			continue // the lock would stay on a server connection that others use
		}
		if err := p.tryLock(ctx, form, r); err != nil {
			return fmt.Errorf("%s: %w", form.name, err)
		}
		tried = append(tried, form.name)
	}
	r.saw("tried %s", strings.Join(tried, ", "))
	return nil
}

func (p *postgres) tryLock(ctx context.Context, form lockForm, r *Result) error {
	const do = "use a server, and a way to it, whose advisory locks exclude: the store does not open here"
	conns, done, err := p.dial(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	holder, other := conns[0], conns[1]
	key := randomKey()
	for _, conn := range conns {
		if _, err := conn.Exec(ctx, `BEGIN`); err != nil {
			return err
		}
	}
	if _, err := holder.Exec(ctx, form.take, key); err != nil {
		r.find(Broken, do, "%s failed: %v", form.name, err)
		return nil
	}
	var second, after bool
	if err := other.QueryRow(ctx, form.try, key).Scan(&second); err != nil {
		r.find(Broken, do, "trying %s while another connection holds it failed: %v", form.name, err)
		return nil
	}
	if second {
		r.find(Broken, do, "%s does not exclude: two connections held the same lock at once", form.name)
		return nil
	}
	if form.free != "" {
		if _, err := holder.Exec(ctx, form.free); err != nil {
			return err
		}
	}
	if _, err := holder.Exec(ctx, `ROLLBACK`); err != nil {
		return err
	}
	if err := other.QueryRow(ctx, form.try, key).Scan(&after); err != nil {
		return err
	}
	if !after {
		r.find(Broken, do, "%s is not given back when its holder ends", form.name)
	}
	if form.free != "" {
		_, err = other.Exec(ctx, form.free)
	}
	return err
}

// tryIsolation checks in one transaction, twice, whether it sees another transaction
// that commits in between. It compares transaction numbers, so that it needs no table.
func tryIsolation(ctx context.Context, p *postgres, r *Result) error {
	const do = "nothing, if handlers are meant to run at this level; onceward.Isolation sets the level of a route"
	level := ""
	if err := p.query(ctx, []any{&level}, `SELECT current_setting('default_transaction_isolation')`); err != nil {
		return err
	}
	r.saw("the default is %s", level)
	if level != "read committed" {
		r.find(Note, do, "handlers run at the default level, %s: the server undoes those that meet, and they run again", level)
	}
	conns, done, err := p.dial(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	reader, writer := conns[0], conns[1]
	var before string
	if _, err := reader.Exec(ctx, `BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY`); err != nil {
		return err
	}
	if err := reader.QueryRow(ctx, `SELECT pg_current_snapshot()::text`).Scan(&before); err != nil {
		return errNotTried("the server does not tell what a statement sees: " + err.Error())
	}
	var committed string
	if err := writer.QueryRow(ctx, `SELECT pg_current_xact_id()::text`).Scan(&committed); err != nil {
		return err
	}
	var saw, sees bool
	err = reader.QueryRow(ctx, `SELECT pg_visible_in_snapshot($1::text::xid8, $2::text::pg_snapshot),
		pg_visible_in_snapshot($1::text::xid8, pg_current_snapshot())`, committed, before).Scan(&saw, &sees)
	if err != nil {
		return err
	}
	r.saw("a commit in between is seen: %t", sees)
	if saw || !sees {
		r.find(Broken, "use a server whose READ COMMITTED looks again with each statement",
			"at READ COMMITTED a second statement does not see what another connection has committed since the first")
	}
	return nil
}

// tryCommit ends two transactions, and reads their status on
// another connection. Each has a number, and writes to no table.
func tryCommit(ctx context.Context, p *postgres, r *Result) error {
	conns, done, err := p.dial(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	for _, ending := range []struct{ statement, becomes string }{{`COMMIT`, "committed"}, {`ROLLBACK`, "aborted"}} {
		var number, became string
		if _, err := conns[0].Exec(ctx, `BEGIN`); err != nil {
			return err
		}
		if err := conns[0].QueryRow(ctx, `SELECT pg_current_xact_id()::text`).Scan(&number); err != nil {
			return err
		}
		tag, err := conns[0].Exec(ctx, ending.statement)
		if err != nil {
			return err
		}
		err = conns[1].QueryRow(ctx, `SELECT coalesce(pg_xact_status($1::text::xid8), '')`, number).Scan(&became)
		if err != nil {
			return err
		}
		r.saw("after %s it is %s", ending.statement, became)
		if became != ending.becomes || tag.String() != ending.statement {
			r.find(Broken, "use a server, and a way to it, that does what it says",
				"%s was answered with %s, and another connection sees the transaction as %s", ending.statement, tag, became)
		}
	}
	return nil
}

// storeFunctions are the server's functions that the store needs.
var storeFunctions = []string{
	"clock_timestamp()", "pg_try_advisory_xact_lock(bigint)", "pg_advisory_xact_lock(bigint)",
	"pg_advisory_xact_lock(integer,integer)",
	"sha256(bytea)", "hashtextextended(text,bigint)", "date_part(text,timestamp with time zone)", "pg_is_in_recovery()",
	"transaction_timestamp()", "pg_notify(text,text)",
}

func tryFunctions(ctx context.Context, p *postgres, r *Result) error {
	type function struct{ Name, Schema string }
	found, err := rows[function](ctx, p, `SELECT f.name, coalesce(n.nspname, '') FROM unnest($1::text[]) AS f (name)
		LEFT JOIN pg_catalog.pg_proc c ON c.oid = to_regprocedure(f.name)
		LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.pronamespace`,
		storeFunctions)
	if err != nil {
		return err
	}
	for _, f := range found {
		switch f.Schema {
		case "pg_catalog":
		case "":
			r.find(Broken, "use PostgreSQL itself, or a server that has all of its functions", "the server has no %s", f.Name)
		default:
			r.find(Broken, "take the schema "+f.Schema+" out of the search_path, or put it behind pg_catalog",
				"%s is that of the schema %s, which is before the server's own in the search_path", f.Name, f.Schema)
		}
	}
	r.saw("%d functions", len(found))
	return nil
}

// pooled reports whether two connections shared a server process. This happens only behind a pooler.
func (p *postgres) pooled(ctx context.Context) (bool, error) {
	conns, done, err := p.dial(ctx, 2)
	if err != nil {
		return false, err
	}
	defer done()
	var first, second int
	if err := conns[0].QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&first); err != nil {
		return false, err
	}
	if _, err := conns[1].Exec(ctx, `BEGIN`); err != nil {
		return false, err
	}
	if err := conns[1].QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&second); err != nil {
		return false, err
	}
	return first == second, nil
}

// pooler reports whether a pooler answers the connection: the
// process ID in the start-up then differs from the server's.
func pooler(ctx context.Context, conn *pgx.Conn) (between bool, err error) {
	var process int32
	err = conn.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&process)
	return uint32(process) != conn.PgConn().PID(), err
}

// tryPooler checks whether connections share server processes, and whether prepared statements survive this.
func tryPooler(ctx context.Context, p *postgres, r *Result) error {
	pooled, err := p.pooled(ctx)
	if err != nil {
		return err
	}
	conns, done, err := p.dial(ctx, 1)
	if err != nil {
		return err
	}
	defer done()
	between, err := pooler(ctx, conns[0])
	if err != nil {
		return err
	}
	switch {
	case pooled:
		r.saw("a pooler in transaction mode")
		r.find(Note, "see docs/postgresql.md, behind a pooler: default_query_exec_mode in the URL, and "+
			"postgres.WithListenURL",
			"two connections shared a process of the server: there is a pooler in transaction mode (such as PgBouncer "+
				"with pool_mode=transaction) in between")
	case between:
		r.saw("a pooler that keeps sessions")
	default:
		r.saw("no pooler")
	}
	if !pooled || p.mode != pgx.QueryExecModeCacheStatement {
		return nil
	}
	prepared, err := p.keepsPrepared(ctx)
	if err == nil && prepared {
		r.saw("it carries prepared statements over")
		return nil
	}
	said := "it does not carry them over"
	if err != nil {
		said = err.Error()
	}
	r.find(Broken, "add default_query_exec_mode=cache_describe to the URL, or use PgBouncer 1.21 or later with "+
		"max_prepared_statements",
		"the URL makes pgx prepare statements, and the pooler in transaction mode (such as PgBouncer) loses them: %s", said)
	return nil
}

// keepsPrepared prepares a statement on one connection, uses its
// server process on another connection, and executes the statement.
func (p *postgres) keepsPrepared(ctx context.Context) (bool, error) {
	conns, done, err := p.dial(ctx, 2)
	if err != nil {
		return false, err
	}
	defer done()
	name := "onceward_doctor_" + strings.ToLower(rand.Text()[:8])
	if _, err := conns[0].Prepare(ctx, name, `SELECT 1`); err != nil {
		return false, err
	}
	if _, err := conns[1].Exec(ctx, `BEGIN`); err != nil {
		return false, err
	}
	if _, err := conns[1].Exec(ctx, `SELECT 1`); err != nil {
		return false, err
	}
	var one int
	if err := conns[0].QueryRow(ctx, name).Scan(&one); err != nil {
		return false, err
	}
	return one == 1, nil
}

// tryListen listens on one connection and notifies on another.
func tryListen(ctx context.Context, p *postgres, r *Result) error {
	const do = "let the store listen past the pooler or proxy, by postgres.WithListenURL, and tell the doctor by " +
		"--listen-url"
	ear, err := pgx.ConnectConfig(ctx, p.listen)
	if err != nil {
		r.find(Weak, do, "the server cannot be reached to listen: %v", err)
		return nil
	}
	defer closing(ear)
	if p.listen == p.config {
		between, err := pooler(ctx, ear)
		if err != nil {
			return err
		}
		if between {
			r.find(Weak, do, "a pooler is in between, and the store does not listen through one: PgBouncer mixes up "+
				"replies when a notification meets its reset of a connection")
			return nil
		}
	}
	channel := "onceward_doctor_" + strings.ToLower(rand.Text())
	if _, err := ear.Exec(ctx, `LISTEN `+channel); err != nil {
		r.find(Weak, do, "LISTEN is refused: %v", err)
		return nil
	}
	begun := time.Now()
	conn, err := p.conn(ctx)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, `SELECT pg_notify($1, 'here')`, channel); err != nil {
		r.find(Weak, do, "NOTIFY is refused: %v", err)
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, p.arrival)
	defer cancel()
	_, err = ear.WaitForNotification(limited)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded) || limited.Err() != nil:
		r.find(Weak, do, "LISTEN was accepted, and a notification did not arrive within %s", p.arrival)
	case err != nil:
		r.find(Weak, do, "listening failed: %v", err)
	default:
		r.saw("after %s", time.Since(begun).Round(100*time.Microsecond))
		_, err = ear.Exec(ctx, `UNLISTEN `+channel)
		return err
	}
	return nil
}

// commits is the number of commits of each kind that are timed.
const commits = 21

// tryCommitTime compares commits that must reach the disk with commits that need not.
// The former write a message into the log, and write to no table.
func tryCommitTime(ctx context.Context, p *postgres, r *Result) error {
	conn, err := p.conn(ctx)
	if err != nil {
		return err
	}
	var durable, idle []time.Duration
	for range commits {
		begun := time.Now()
		if _, err := conn.Exec(ctx, `SELECT pg_logical_emit_message(true, 'onceward.doctor', '')`); err != nil {
			return errNotTried("a commit without a table cannot be had from this server: " + err.Error())
		}
		durable = append(durable, time.Since(begun))
		begun = time.Now()
		if _, err := conn.Exec(ctx, `SELECT pg_is_in_recovery()`); err != nil {
			return err
		}
		idle = append(idle, time.Since(begun))
	}
	flush := median(durable) - median(idle)
	r.saw("a commit takes %s, %s of it for the disk", round(median(durable)), round(max(flush, 0)))
	if flush < plausibleFlush {
		r.find(Note, "see that the log is on a disk that keeps it over a power loss, and not in memory",
			"a commit costs %s more than a look, in the middle of %d: less than any disk takes", round(max(flush, 0)), commits)
	}
	return nil
}

// plausibleFlush is the shortest time in which the fastest disks make data durable. Disks with
// a cache that survives a power loss are nearly as fast, so that a shorter time is only a note.
const plausibleFlush = 10 * time.Microsecond

// round shortens a duration for display.
func round(d time.Duration) time.Duration {
	if d < time.Millisecond {
		return d.Round(time.Microsecond)
	}
	return d.Round(10 * time.Microsecond)
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
