package doctor

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// namesPoolSize reports whether a URL, or a text of keywords and values, sets the size of the pool.
func namesPoolSize(text string) bool {
	if u, err := url.Parse(text); err == nil {
		return u.Query().Has("pool_max_conns")
	}
	return strings.Contains(text, "pool_max_conns")
}

func tryPrimary(ctx context.Context, p *postgres, r *Result) error {
	var standby bool
	var readOnly string
	err := p.query(ctx, []any{&standby, &readOnly},
		`SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')`)
	if err != nil {
		return err
	}
	switch {
	case standby:
		r.find(Broken, "name the primary in the URL, or several hosts with target_session_attrs=read-write",
			"the server is a standby")
	case readOnly == "on":
		r.find(Broken, "ALTER ROLE … SET default_transaction_read_only = off, or take it out of the URL or the database",
			"new transactions are read-only by default (default_transaction_read_only is on)")
	default:
		r.saw("a primary, writable")
	}
	return nil
}

// setting is a setting of the server, with the source of its value.
type setting struct{ Name, Value, Source string }

// from returns where a setting is made, so that an operator can change it.
func (s setting) from() string {
	switch s.Source {
	case "database":
		return "set for the database (ALTER DATABASE)"
	case "user":
		return "set for the role (ALTER ROLE)"
	case "database user":
		return "set for the role in this database (ALTER ROLE … IN DATABASE)"
	case "client":
		return "set in the URL or the environment"
	default:
		return "set in the configuration of the server"
	}
}

func (p *postgres) settings(ctx context.Context, names ...string) (map[string]setting, error) {
	found, err := rows[setting](ctx, p, `SELECT name, setting, source FROM pg_settings WHERE name = ANY ($1::text[])`,
		names)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]setting, len(found))
	for _, s := range found {
		byName[s.Name] = s
	}
	return byName, nil
}

func tryDurability(ctx context.Context, p *postgres, r *Result) error {
	found, err := p.settings(ctx, "fsync", "full_page_writes", "synchronous_commit", "wal_sync_method")
	if err != nil {
		return err
	}
	lost := map[string]string{
		"fsync":              "a crash of the machine can lose everything",
		"full_page_writes":   "a crash of the machine can damage pages",
		"synchronous_commit": "a crash loses the last commits",
	}
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		s := found[name]
		r.saw("%s=%s", name, s.Value)
		if s.Value == "off" {
			r.find(Broken, "set "+name+" = on; it is "+s.from(), "%s is off: %s", name, lost[name])
		}
	}
	r.saw("wal_sync_method=%s", found["wal_sync_method"].Value)
	return p.tryOtherRoles(ctx, r)
}

// selectCareless returns the other roles whose commits do not wait for the disk.
const selectCareless = `SELECT r.rolname::text, s.setting, ''
	FROM pg_db_role_setting d CROSS JOIN LATERAL unnest(d.setconfig) AS s (setting) JOIN pg_roles r ON r.oid = d.setrole
	WHERE d.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
		AND s.setting = 'synchronous_commit=off' AND r.rolname <> current_user AND r.rolcanlogin
		AND has_table_privilege(r.oid, to_regclass($1), 'INSERT')`

func (p *postgres) tryOtherRoles(ctx context.Context, r *Result) error {
	if !p.tables {
		return nil
	}
	careless, err := rows[setting](ctx, p, selectCareless, p.table("record"))
	if err != nil {
		return err
	}
	for _, role := range careless {
		r.find(Weak, "ALTER ROLE "+role.Name+" RESET synchronous_commit, or take from it the right to write records",
			"the role %s may write records, and %s is set for it: a crash loses the last ones", role.Name, role.Value)
	}
	return nil
}

// selectStandbys returns the standbys that can take over. Backups, archivers and
// logical subscribers are left out. Values that the role may not see are null.
const selectStandbys = `SELECT coalesce(application_name, ''), coalesce(sync_state, ''),
		coalesce(extract(epoch FROM replay_lag)::float8, 0), coalesce(pg_wal_lsn_diff(
			CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END, replay_lsn)::float8, 0)
	FROM pg_stat_replication r
	WHERE state IS DISTINCT FROM 'backup'
		AND application_name NOT IN ('pg_basebackup', 'pg_receivewal', 'barman_receive_wal')
		AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')`

const (
	maxReplayLag  = 10.0     // seconds
	maxReplayDiff = 64 << 20 // bytes
)

func tryStandbys(ctx context.Context, p *postgres, r *Result) error {
	type standby struct {
		Name, State string
		Lag, Behind float64
	}
	standbys, err := rows[standby](ctx, p, selectStandbys)
	if err != nil {
		return err
	}
	found, err := p.settings(ctx, "synchronous_standby_names", "synchronous_commit")
	if err != nil {
		return err
	}
	names, synchronous := found["synchronous_standby_names"].Value, found["synchronous_commit"].Value
	r.saw("%d standbys, synchronous_standby_names=%q", len(standbys), names)
	const do = "set synchronous_standby_names, as in 'ANY 1 (*)', and synchronous_commit = on; the service refuses anything " +
		"else with sync_replicas_only=true in its URL, or postgres.WithSyncReplicasOnly"
	none := names == "" || synchronous == "local" || synchronous == "off"
	switch {
	case p.syncOnly && (none || synchronous == "remote_write"):
		r.find(Broken, do, "the URL wants synchronous replicas only, and the service will refuse this server "+
			"(synchronous_standby_names is %q, synchronous_commit is %s)", names, synchronous)
	case len(standbys) > 0 && none:
		r.find(Weak, do,
			"%d standbys follow, and commits wait for none of them (synchronous_standby_names is %q, synchronous_commit is %s)",
			len(standbys), names, synchronous)
	case len(standbys) > 0 && synchronous == "remote_write":
		r.find(Note, do, "commits wait until a standby has them in memory, not on its disk (synchronous_commit is "+
			"remote_write): a crash of both machines loses the last ones")
	}
	for _, s := range standbys {
		if s.Lag > maxReplayLag || s.Behind > maxReplayDiff {
			r.find(Weak, "look at the standby's disk, its network, and long queries on it",
				"the standby %q is behind by %.0f s and %.0f MB", s.Name, s.Lag, s.Behind/(1<<20))
		}
	}
	return nil
}

// ownConnections is the number of connections that a store opens
// beside the handlers' pool, under trouble: see docs/production.md.
const ownConnections = 16

func tryConnections(ctx context.Context, p *postgres, r *Result) error {
	var most, used, role, database int
	err := p.query(ctx, []any{&most, &used, &role, &database}, `SELECT
		current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
			- coalesce(current_setting('reserved_connections', true)::integer, 0), -- of PostgreSQL 16
		(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
		(SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
		(SELECT datconnlimit FROM pg_database WHERE datname = current_database())`)
	if err != nil {
		return err
	}
	for _, limit := range []int{role, database} {
		if limit >= 0 {
			most = min(most, limit)
		}
	}
	needed := p.replicas * (max(p.poolSize, 1) + ownConnections)
	r.saw("%d may be open, %d are, %d are needed", most, used, needed)
	if needed > most {
		r.find(Weak, "raise max_connections (or the limit of the role or the database), or lower pool_max_conns",
			"%d connections may be open, and %d replicas with a pool of %d may need %d", most, p.replicas, max(p.poolSize, 1),
			needed)
	}
	return nil
}

// leastTimes are the shortest timeouts that the store needs on the server.
var leastTimes = []struct {
	name  string
	least time.Duration
}{
	{"statement_timeout", 5 * time.Second},
	{"idle_in_transaction_session_timeout", 5 * time.Second},
	{"transaction_timeout", 35 * time.Second},
	{"lock_timeout", 100 * time.Millisecond},
	{"idle_session_timeout", time.Minute},
}

func tryTimeouts(ctx context.Context, p *postgres, r *Result) error {
	var names []string
	for _, each := range leastTimes {
		names = append(names, each.name)
	}
	found, err := p.settings(ctx, names...)
	if err != nil {
		return err
	}
	set := 0
	for _, each := range leastTimes {
		s, ok := found[each.name]
		var ms int64
		if _, err := fmt.Sscan(s.Value, &ms); !ok || err != nil || ms == 0 {
			continue
		}
		set++
		limit := time.Duration(ms) * time.Millisecond
		r.saw("%s=%s", each.name, limit)
		if limit < each.least {
			r.find(Weak, fmt.Sprintf("give it at least %s, or 0 for none; it is %s", each.least, s.from()), "%s is %s",
				each.name, limit)
		}
	}
	if set == 0 {
		r.saw("none is set")
	}
	return nil
}

// oldTransaction is the longest time for which a transaction may stay open.
const oldTransaction = time.Hour

// selectOld returns what keeps vacuum from removing rows: transactions, prepared transactions, replication slots.
const selectOld = `
	SELECT format('a transaction of %s (process %s, %s)', usename, pid, coalesce(nullif(application_name, ''), 'no name')),
		extract(epoch FROM pg_catalog.clock_timestamp() - xact_start)::float8
	FROM pg_stat_activity
	WHERE datname = current_database() AND backend_type = 'client backend'
		AND xact_start < pg_catalog.clock_timestamp() - $1::text::interval
	UNION ALL
	SELECT format('the prepared transaction %s of %s', gid, owner),
		extract(epoch FROM pg_catalog.clock_timestamp() - prepared)::float8
	FROM pg_prepared_xacts
	WHERE database = current_database() AND prepared < pg_catalog.clock_timestamp() - $1::text::interval
	UNION ALL
	SELECT format('the replication slot %s, %s transactions behind', slot_name, greatest(age(xmin), age(catalog_xmin))), 0
	FROM pg_replication_slots WHERE NOT active AND greatest(age(xmin), age(catalog_xmin)) > 1000000`

func tryOldTransactions(ctx context.Context, p *postgres, r *Result) error {
	type holder struct {
		What string
		Age  float64
	}
	found, err := rows[holder](ctx, p, selectOld, fmt.Sprintf("%d milliseconds", p.old.Milliseconds()))
	if err != nil {
		return err
	}
	for _, h := range found {
		r.find(Weak, "end it (pg_terminate_backend, ROLLBACK PREPARED, pg_drop_replication_slot) when its owner agrees, "+
			"and set idle_in_transaction_session_timeout", "%s has been open for %s", h.What,
			time.Duration(h.Age*float64(time.Second)).Round(time.Second))
	}
	var hidden int
	err = p.query(ctx, []any{&hidden}, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND query = '<insufficient privilege>'`)
	if err == nil && hidden > 0 && len(found) == 0 {
		r.saw("what this role may see; %d connections of others are hidden (pg_monitor shows them)", hidden)
	}
	return err
}

// farTransactions is an age of transaction numbers that a database never reaches while autovacuum works.
const farTransactions = 1_000_000_000

func tryWraparound(ctx context.Context, p *postgres, r *Result) error {
	var transactions, groups int64
	err := p.query(ctx, []any{&transactions, &groups},
		`SELECT age(datfrozenxid), mxid_age(datminmxid) FROM pg_database WHERE datname = current_database()`)
	if err != nil {
		return err
	}
	r.saw("%d of 2,147,483,648 transaction numbers, %d of multixacts", transactions, groups)
	if max(transactions, groups) > farTransactions {
		r.find(Weak, "let vacuum run to its end (VACUUM FREEZE), and see what keeps it from doing so",
			"%d transaction numbers and %d multixacts are in use: at 2,147,483,648 the server stops", transactions, groups)
	}
	return nil
}
