package postgres_test

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// plans collects how the server carries out each statement of a store, also those inside of functions: its module
// auto_explain tells after each execution, and so shows the plans that are used, not those that might be.
type plans struct {
	mu   sync.Mutex
	seen []string
}

// explaining makes connections whose server tells its plans. Only a superuser may.
func (p *plans) explaining(t testing.TB, url string) *pgxpool.Config {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	must(t, err)
	for setting, value := range map[string]string{
		"log_min_duration": "0", "log_nested_statements": "on", "log_level": "notice", "log_format": "text",
		"log_analyze": "on", "log_timing": "off",
	} {
		config.ConnConfig.RuntimeParams["auto_explain."+setting] = value
	}
	config.ConnConfig.RuntimeParams["session_preload_libraries"] = "auto_explain"
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if strings.Contains(n.Message, "plan:") {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.seen = append(p.seen, n.Message)
		}
	}
	return config
}

// take returns the plans since the last call.
func (p *plans) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.seen
	p.seen = nil
	return seen
}

var (
	onTables = regexp.MustCompile(`(?:on|using) "?onceward_(?:record|late_completion|external_event|audit)`)
	// walks read all of a table; gathers also are those that read all that an index finds before they take the first.
	walks   = regexp.MustCompile(`Seq Scan on onceward_(?:record|late_completion|external_event|audit)`)
	gathers = regexp.MustCompile(walks.String() + `|Sort Key`)
)

// wantNone checks that what a call did has nothing in its plans that is forbidden, and that there was something to
// check.
func (p *plans) wantNone(t testing.TB, forbidden *regexp.Regexp, name string) {
	t.Helper()
	bad := make(map[string]string) // one plan for each kind of finding
	ours := 0
	for _, plan := range p.take() {
		if !onTables.MatchString(plan) {
			continue
		}
		ours++
		if found := forbidden.FindString(plan); found != "" {
			bad[found] = plan
		}
	}
	for found, plan := range bad {
		t.Errorf("%s: %s in\n%s", name, found, plan)
	}
	if ours == 0 {
		t.Errorf("%s: no plan that touches the tables was seen", name)
	}
}

// planned is a store under a collector of plans.
type planned struct {
	*testing.T
	plans
	store *postgres.Store
	admin *pgxpool.Pool
	used  int
}

func newPlanned(t *testing.T, made ...postgres.Option) *planned {
	p := &planned{T: t}
	url := servers.Postgres(t).SchemaURL(t)
	openStore(t, url, made...)
	pool, err := pgxpool.NewWithConfig(t.Context(), p.explaining(t, url))
	must(t, err)
	p.store, err = postgres.New(t.Context(), pool, quiet, postgres.WithLanes(1))
	must(t, err)
	t.Cleanup(func() {
		must(t, p.store.Close())
		pool.Close()
	})
	p.admin = openAdmin(t, url)
	return p
}

// key is one that was not used before.
func (p *planned) key() string {
	p.used++
	return keys("planned", p.used)[p.used-1]
}

// hot is all that is asked of the store often. Each function does one thing and touches the records.
func (p *planned) hot() map[string]func() {
	expired := func() *store.Reservation {
		r := reservation(p.key())
		r.Retention = time.Microsecond
		return r
	}
	return map[string]func(){
		"reserve, heartbeat, complete, replay": func() {
			c := own(p, p.store, reservation(p.key()))
			must(p, p.store.Extend(p.Context(), c, time.Minute))
			complete(p, p.store, c, "done")
			wantReplay(p, p.store, c.Key, "done", "I3")
		},
		"release and retry": func() {
			c := own(p, p.store, reservation(p.key()))
			must(p, p.store.Checkpoint(p.Context(), c, store.Checkpoint{Point: "p"}))
			must(p, p.store.Release(p.Context(), c, "no stock"))
			own(p, p.store, reservation(c.Key))
		},
		"expire and recreate": func() {
			r := expired()
			complete(p, p.store, own(p, p.store, r), "done")
			own(p, p.store, r)
		},
		"a step with its point":            func() { p.steps() },
		"transact":                         func() { transacted(p, p.store, p.key(), nothing) },
		"transact over a record":           func() { p.overReleased() },
		"wait":                             func() { p.waits() },
		"sweep":                            func() { p.sweeps() },
		"reap":                             func() { complete(p, p.store, own(p, p.store, expired()), "done"); p.reaps(false) },
		"reap softly":                      func() { complete(p, p.store, own(p, p.store, expired()), "done"); p.reaps(true) },
		"a late completion":                func() { p.late() },
		"an external event that is purged": func() { p.event(); p.purges(p.store.PurgeExternalEvents) },
		"an act that is purged":            func() { p.act(); p.purges(p.store.PurgeAudit) },
	}
}

func (p *planned) overReleased() {
	c := own(p, p.store, reservation(p.key()))
	must(p, p.store.Release(p.Context(), c, "no stock"))
	transacted(p, p.store, c.Key, nothing)
	v, err := p.store.Transact(p.Context(), reservation(c.Key), committing("", nothing))
	if err != nil || v.Decision != store.DecisionReplay {
		p.Errorf("I3: a replay got (%s, %v)", v.Decision, err)
	}
}

func (p *planned) steps() {
	c := own(p, p.store, reservation(p.key()))
	must(p, p.store.CheckpointTx(p.Context(), c, time.Minute,
		func(context.Context) (store.Checkpoint, error) { return charged, nil }))
}

func (p *planned) waits() {
	c := own(p, p.store, reservation(p.key()))
	ended := crowd(p.Context(), 1, func(ctx context.Context, _ int) {
		if err := p.store.Wait(ctx, c.ID, c.Attempt); err != nil {
			p.Errorf("a wait ended with %v", err)
		}
	})
	complete(p, p.store, c, "done")
	ended() // which the wait has looked for
}

func (p *planned) sweeps() {
	r := reservation(p.key())
	r.Lease = time.Microsecond
	own(p, p.store, r)
	if n, err := p.store.Sweep(p.Context(), 10); err != nil || n == 0 {
		p.Errorf("B1: swept (%d, %v)", n, err)
	}
}

func (p *planned) reaps(soft bool) {
	if n, err := p.store.Reap(p.Context(), 10, soft); err != nil || n == 0 {
		p.Errorf("B2: reaped (%d, %v)", n, err)
	}
}

// check does everything so often that the server stops planning each time, and looks at each plan.
func (p *planned) check(forbidden *regexp.Regexp, size string) {
	p.repeat(p.hot(), forbidden, size)
	p.repeat(p.evidence(), walks, size)
	p.checkSteps(size)
}

func (p *planned) repeat(all map[string]func(), forbidden *regexp.Regexp, size string) {
	const often = 8
	for name, f := range all {
		p.take()
		for range often {
			f()
		}
		p.wantNone(p, forbidden, name+" "+size)
	}
}

// fill adds records that are like the one that is there, in all the states that background work looks for.
func (p *planned) fill(n int) {
	exec(p, p.admin, `INSERT INTO onceward_record (id, attempt, due, retention, created_at, settled_at, status, nonce, body, state, version,
			fingerprint, operation, scope, key)
		SELECT gen_random_uuid(), attempt, onceward_now() + 3600000000 + i, retention, 1, 1, status, decode(repeat('00', 16), 'hex'),
			body, (ARRAY[10, 20, 20, 30, 40])[i % 5 + 1], version, fingerprint, operation, scope, key
		FROM generate_series(1, $1::integer) AS i, (SELECT * FROM onceward_record WHERE state = 20 LIMIT 1) AS sample`, n)
	exec(p, p.admin, `INSERT INTO onceward_late_completion (id, attempt, at, status)
		SELECT gen_random_uuid(), 1, onceward_now() + i, 200 FROM generate_series(1, $1::integer) AS i`, n)
	exec(p, p.admin, `INSERT INTO onceward_external_event (any_scope, scope, source, event_id, subject, at, received_at, body)
		SELECT false, 'tenant', 'psp', int8send(i), int8send(i), i, onceward_now() + i, '' FROM generate_series(1, $1::integer) AS i`, n)
	exec(p, p.admin, `INSERT INTO onceward_audit (id, scope, key, attempt, actor, action, reason, outcome, at)
		SELECT gen_random_uuid(), '', '', 1, '', '', '', '', onceward_now() + i FROM generate_series(1, $1::integer) AS i`, n)
}

// advances finds the statement that stores a recovery point, byKey a look-up by the key of the table.
var (
	advances = regexp.MustCompile(`SET point = coalesce\(\$2, point\)`)
	byKey    = regexp.MustCompile(`Index Cond: \(id = `)
)

// checkSteps looks at how a recovery point is stored. It is by the key of the table: the column state, by which the
// statement asks too, has an index that finds every record in progress.
func (p *planned) checkSteps(size string) {
	p.take()
	const often = 8
	seen := 0
	for range often {
		p.steps()
	}
	for _, plan := range p.take() {
		if !advances.MatchString(plan) {
			continue
		}
		seen++
		if !byKey.MatchString(plan) {
			p.Errorf("a step with its point %s: not by the key in\n%s", size, plan)
		}
	}
	if seen != often {
		p.Errorf("a step with its point %s: %d plans were seen, want %d", size, seen, often)
	}
}

// checkPages looks at how a page is listed. A page is so long that the server may well read and sort all that is left
// of a table if that is hardly longer, so this is for large ones only, and for their first half.
func (p *planned) checkPages(size string) {
	p.take()
	// The rows of fill all hold the name of one record, so that the last of a page does not say where the page ended.
	for i, listed := 0, 0; listed < 8; i++ {
		after := store.ID{Key: strconv.Itoa(i)}
		if p.store.RecordID(after) > "8" {
			continue
		}
		listed++
		_, err := p.store.List(p.Context(), store.Filter{Limit: 5, After: after})
		must(p, err)
	}
	p.wantNone(p, gathers, "list "+size)
}

// openRecords finds the statement that lists what is open, byState a look-up by the state, and clockFirst a clock that
// is asked before the look-up, not for each record of it.
var (
	openRecords = regexp.MustCompile(`WITH open AS MATERIALIZED`)
	byState     = regexp.MustCompile(`onceward_record_(?:open|p\d+_\d+_state_due_idx)`)
	clockFirst  = regexp.MustCompile(`due <= (?:\$\d|\(InitPlan)`)
)

// checkOpen looks at how workers find what is in progress or unknown among many records: not by a walk through all of
// them.
func (p *planned) checkOpen(size string) {
	p.take()
	const often = 8
	for range often {
		for _, state := range []store.State{store.StateInProgress, store.StateUnknown} {
			_, err := p.store.List(p.Context(), store.Filter{State: state, Due: true})
			must(p, err)
		}
	}
	seen := 0
	for _, plan := range p.take() {
		if !openRecords.MatchString(plan) {
			continue
		}
		seen++
		if !byState.MatchString(plan) {
			p.Errorf("what is open %s: not by the state in\n%s", size, plan)
		}
		if !clockFirst.MatchString(plan) {
			p.Errorf("what is open %s: the clock is asked for each record in\n%s", size, plan)
		}
	}
	if seen != 2*often {
		p.Errorf("what is open %s: %d plans were seen, want %d", size, seen, 2*often)
	}
}

// TestPlansOfATableThatGrows: what was planned while the table was empty stays a look-up when it is not.
func TestPlansOfATableThatGrows(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it fills a table; TestPlansOfASmallTable looks at the same statements")
	p := newPlanned(t)
	p.check(walks, "on an empty table")
	p.fill(20_000)
	p.check(gathers, "on a table that has grown since")
	exec(t, p.admin, `ANALYZE onceward_record, onceward_late_completion, onceward_external_event, onceward_audit`)
	p.check(gathers, "on a table of twenty thousand")
	p.checkPages("on a table of twenty thousand")
	p.checkOpen("on a table of twenty thousand")
}

// TestPlansOfASmallTable: the server would rather read a table of one page than its index; what it has planned so it
// would keep doing when the table has grown.
func TestPlansOfASmallTable(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	complete(t, p.store, own(t, p.store, reservation(p.key())), "done")
	p.fill(10)
	exec(t, p.admin, `VACUUM ANALYZE onceward_record`, pgx.QueryExecModeSimpleProtocol)
	p.check(walks, "on a small table")
}

// TestFunctionsInPlace: what is asked often calls no SQL function. The server puts the text of a simple one in the
// place of its call when it plans; where it cannot, it parses and plans that text in every statement, and counts the
// call.
func TestFunctionsInPlace(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, url)
	config, err := pgxpool.ParseConfig(url)
	must(t, err)
	const name = "onceward: functions in place"
	config.ConnConfig.RuntimeParams["track_functions"] = "all"
	config.ConnConfig.RuntimeParams["application_name"] = name
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	store, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	for _, key := range keys("in place", 8) {
		c := own(t, store, reservation(key))
		must(t, store.Extend(t.Context(), c, time.Minute))
		complete(t, store, c, "done")
		wantReplay(t, store, key, "done", "I3")
		transacted(t, store, "transacted "+key, nothing)
		_, err := store.Get(t.Context(), c.ID)
		must(t, err)
	}
	_, err = store.Sweep(t.Context(), 1) // a function that is called, to see that calls are counted
	must(t, err)
	must(t, store.Close())
	pool.Close()
	await.That(t, "the connections have ended, which report their counts then", func() bool {
		return number(t, admin, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`, name) == 0
	})
	const calls = `SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions
		WHERE schemaname = current_schema() AND (funcname = 'onceward_sweep') = $1`
	// PostgreSQL 14 counts a little later.
	await.That(t, "the call of a function was counted", func() bool {
		return number(t, admin, calls, true) == 1
	})
	if n := number(t, admin, calls, false); n != 0 {
		t.Errorf("%d calls of SQL functions were left in hot statements, want none", n)
	}
}

// evidence is how that is read which is kept beside the records. It is all that an index finds, and may be sorted.
func (p *planned) evidence() map[string]func() {
	return map[string]func(){
		"find by hash": func() {
			c := own(p, p.store, reservation(p.key()))
			if rec, err := p.store.FindHash(p.Context(), c.Hash()); err != nil || rec.ID != c.ID {
				p.Errorf("by its hash (%v, %v) is found", rec.ID, err)
			}
		},
		"find by provider's id": func() {
			c := own(p, p.store, reservation(p.key()))
			done := answer("done")
			done.ProviderID = "ch_" + c.Key
			_, err := p.store.Complete(p.Context(), c, done)
			must(p, err)
			if found, err := p.store.FindProviderID(p.Context(), done.ProviderID); err != nil || len(found) != 1 {
				p.Errorf("by its provider's id (%v, %v) is found", found, err)
			}
		},
		"late completions": func() {
			if found, err := p.store.LateCompletions(p.Context(), p.late()); err != nil || len(found) != 1 {
				p.Errorf("S6: late completions are (%v, %v)", found, err)
			}
		},
		"external events": func() {
			if found, err := p.store.ExternalEvents(p.Context(), aboutCharge(p.event(), "ch_1")); err != nil || len(found) != 1 {
				p.Errorf("B3: external events are (%v, %v)", found, err)
			}
		},
		"acts": func() {
			if found, err := p.store.Audit(p.Context(), p.act()); err != nil || len(found) != 1 {
				p.Errorf("L7: acts are (%v, %v)", found, err)
			}
		},
	}
}

func (p *planned) late() store.ID {
	id := idOf(p.key())
	f := store.LateCompletion{Claim: store.Claim{ID: id, Attempt: 1}, Response: answer("late").Response, At: time.Now()}
	must(p, p.store.AddLateCompletion(p.Context(), f))
	return id
}

func (p *planned) event() (subject string) {
	subject = p.key()
	_, err := p.store.AddExternalEvent(p.Context(),
		store.ExternalEvent{Source: "psp", Scope: "tenant", EventID: subject, Subject: subject})
	must(p, err)
	return subject
}

// aboutCharge chooses what the provider says of a charge.
func aboutCharge(subjects ...string) store.ExternalEventFilter {
	return store.ExternalEventFilter{Source: "psp", Scope: "tenant", Subjects: subjects}
}

func (p *planned) act() store.ID {
	id := idOf(p.key())
	must(p, p.store.AddAudit(p.Context(), store.AuditEntry{ID: id, Actor: "ops"}))
	return id
}

func (p *planned) purges(purge func(context.Context, time.Duration, int) (int, error)) {
	if n, err := purge(p.Context(), -time.Second, 1); err != nil || n != 1 {
		p.Errorf("L7: purged (%d, %v)", n, err)
	}
}
