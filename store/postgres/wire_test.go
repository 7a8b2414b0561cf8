package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// tripping counts what single calls send and receive, after others of the same kind have prepared their statements.
type tripping struct {
	*testing.T
	store  *postgres.Store
	proxy  *servers.Proxy
	claims map[string]store.Claim
}

func newTripping(t *testing.T, options ...postgres.Option) *tripping {
	s, proxy := openProxied(t, options...)
	awaitListener(t, s)
	return &tripping{T: t, store: s, proxy: proxy, claims: make(map[string]store.Claim)}
}

// awaitListener waits until a store has said to itself what its listener says at its start.
func awaitListener(t *testing.T, s *postgres.Store) {
	await.That(t, "the store listens", s.HearsMessages)
}

// wire is what a call costs: round trips, statements that are executed, and the messages by their letters, with a space
// behind each round trip. The client sends (P)arse, (D)escribe, (B)ind, (E)xecute, (S)ync and (Q)uery; the server
// answers 1 to Parse, t and (T) or n to Describe, 2 to Bind, D for a row, C for the end of a statement, E for an error
// and Z for the end of a round trip.
type wire struct {
	trips, statements int
	sent, received    string
}

func wireOf(t servers.Traffic) wire {
	spaced := func(letters, last string) string {
		for _, l := range last {
			letters = strings.ReplaceAll(letters, string(l), string(l)+" ")
		}
		return strings.TrimSpace(letters)
	}
	return wire{t.RoundTrips, t.Statements, spaced(t.Sent, "SQ"), spaced(t.Received, "Z")}
}

// count measures until every connection of the pools is warm: so many calls in a row must cost what is wanted.
func (c *tripping) count(name string, want wire, measure func(key string) servers.Traffic) {
	c.Helper()
	const most, counted = 48, 6
	var wrong wire
	inRow := 0
	for _, key := range keys(name, most) {
		if got := wireOf(measure(key)); got != want {
			wrong, inRow = got, 0
		} else if inRow++; inRow == counted {
			return
		}
	}
	c.Errorf("%s: a call cost\n%+v, want\n%+v", name, wrong, want)
}

// want counts what a call costs. What it finds is prepared before.
func (c *tripping) want(name string, want wire, prepare, call func(key string)) {
	c.Helper()
	c.count(name, want, func(key string) servers.Traffic {
		if prepare != nil {
			prepare(key)
		}
		return c.proxy.Record(func() { call(key) })
	})
}

// wantWithin counts what a call costs while a transaction with the same key is in flight.
func (c *tripping) wantWithin(name string, want wire, call func(key string)) {
	c.Helper()
	c.count(name, want, func(key string) (traffic servers.Traffic) {
		transacted(c, c.store, key, func(context.Context) error {
			traffic = c.proxy.Record(func() { call(key) })
			return nil
		})
		return traffic
	})
}

// wantBatch counts what calls cost that wait for the one lane together, after others have prepared the statement.
func (c *tripping) wantBatch(
	name string, want wire, prepare func(key string), call func(ctx context.Context, key string),
) {
	c.Helper()
	const together, warm, counted = 4, 1, 2
	for i, round := range keys(name, warm+counted) {
		all := keys(round, together)
		for _, key := range all {
			prepare(key)
		}
		letGo := holdLane(c, c.store, c.proxy, round+" waits for this")
		ended := crowd(c.Context(), together, func(ctx context.Context, n int) { call(ctx, all[n]) })
		traffic := c.proxy.Record(func() {
			letGo()
			ended()
		})
		if got := wireOf(traffic); got != want && i >= warm {
			c.Errorf("%s: %d together cost\n%+v, want\n%+v", name, together, got, want)
			return
		}
	}
}

func (c *tripping) own(key string)      { c.claims[key] = own(c, c.store, reservation(key)) }
func (c *tripping) complete(key string) { complete(c, c.store, c.claims[key], key) }

func (c *tripping) settled(key string) {
	c.own(key)
	c.complete(key)
}

func (c *tripping) released(key string) {
	c.own(key)
	must(c, c.store.Release(c.Context(), c.claims[key], "no stock"))
}

// queried is what the driver makes of a query whose statement it knows: releases before v5.9.0 ask what it returns.
func (c *tripping) queried() wire {
	conn, err := pgx.Connect(c.Context(), c.proxy.URL())
	must(c, err)
	defer func() { must(c, conn.Close(c.Context())) }()
	query := func() {
		var n int
		must(c, conn.QueryRow(c.Context(), `SELECT $1::integer`, 1).Scan(&n))
	}
	query()
	got := wireOf(c.proxy.Record(query))
	if got != (wire{1, 1, "BES", "2DCZ"}) && got != (wire{1, 1, "BDES", "2TDCZ"}) {
		c.Errorf("the driver makes %+v of a query", got)
	}
	return got
}

// executed is what the driver makes of a statement without columns, for the first time and again: releases differ in
// whether they ask what it returns.
func (c *tripping) executed() (first, again wire) {
	conn, err := pgx.Connect(c.Context(), c.proxy.URL())
	must(c, err)
	defer func() { must(c, conn.Close(c.Context())) }()
	execute := func() {
		_, err := conn.Exec(c.Context(), insertion, "value")
		must(c, err)
	}
	first = wireOf(c.proxy.Record(execute))
	return first, wireOf(c.proxy.Record(execute))
}

// reserve is a reservation that is answered so.
func (c *tripping) reserve(want store.Decision, change ...func(*store.Reservation)) func(key string) {
	return func(key string) {
		c.Helper()
		r := reservation(key)
		for _, f := range change {
			f(r)
		}
		if v, err := c.store.Reserve(c.Context(), r); err != nil || v.Decision != want {
			c.Errorf("%s: reserve got (%s, %v), want %s", key, v.Decision, err, want)
		}
	}
}

// another makes a reservation that of another request.
func another(r *store.Reservation) { r.Fingerprints[0].Sum[0]++ }

// transact is a transaction that is executed, and does f.
func (c *tripping) transact(f func(ctx context.Context) error) func(key string) {
	return func(key string) { transacted(c, c.store, key, f) }
}

// decline is a transaction that is answered so, and does nothing.
func (c *tripping) decline(
	s store.Transactor, want store.Decision, change ...func(*store.Reservation),
) func(key string) {
	return func(key string) {
		c.Helper()
		r := reservation(key)
		for _, f := range change {
			f(r)
		}
		v, err := s.Transact(c.Context(), r, func(context.Context, store.Verdict) store.Settlement {
			c.Errorf("%s: the work ran", key)
			return store.Settlement{Action: store.TxRollback}
		})
		if err != nil || v.Decision != want {
			c.Errorf("%s: transact got (%s, %v), want %s", key, v.Decision, err, want)
		}
	}
}

// got is a look at a record.
var got = wire{1, 1, "PBES", "12DCZ"}

// TestRoundTrips: a call that is alone costs one round trip of one statement, and so do calls that wait together.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	c := newTripping(t, postgres.OneLane())
	row := wire{1, 1, "BES", "2DCZ"}
	c.want("a reservation", row, nil, c.own)
	c.want("a heartbeat", row, c.own,
		func(key string) { must(t, c.store.Extend(t.Context(), c.claims[key], time.Minute)) })
	c.want("a completion", row, c.own, c.complete)
	c.want("a replay", row, c.settled, func(key string) { wantReplay(t, c.store, key, key, "I3") })
	c.want("a duplicate", row, c.own, c.reserve(store.DecisionInProgress))
	c.want("a mismatch", row, c.settled, c.reserve(store.DecisionMismatch, another))
	look := func(want store.State) func(string) {
		return func(key string) { wantState(t, c.store, key, want, "section 11") }
	}
	c.want("a look", got, c.settled, look(store.StateCompleted))
	c.want("a look at nothing", got, nil, look(store.StateNone))

	rows := wire{1, 1, "BES", "2DDDDCZ"}
	c.wantBatch("reservations", rows, func(string) {},
		func(ctx context.Context, key string) { ownIn(ctx, t, c.store, reservation(key)) })
	c.wantBatch("completions", rows, c.own, func(ctx context.Context, key string) {
		if _, err := c.store.Complete(ctx, c.claims[key], answer(key)); err != nil {
			t.Errorf("complete %q: %v", key, err)
		}
	})
	c.wantBatch("replays", rows, c.settled, func(ctx context.Context, key string) {
		if v, err := c.store.Reserve(ctx, reservation(key)); err != nil || v.Decision != store.DecisionReplay {
			t.Errorf("a replay of %q got (%s, %v)", key, v.Decision, err)
		}
	})
}

// What the two round trips of a transaction cost: BEGIN, the lock and the look-up; the answer and COMMIT.
const (
	sentBegin, sentCommit             = "BEBEBES", "BEBES"
	looked, stored                    = "2C2DC2DCZ", "2DC2CZ"
	beginStatements, commitStatements = 3, 2
	sentRollback, rolledBack          = "Q", "CZ"
)

// TestRoundTripsOfTransactions: the claim rides with BEGIN, and the answer with COMMIT.
func TestRoundTripsOfTransactions(t *testing.T) {
	t.Parallel()
	c := newTripping(t)
	other := openUnasked(t, c.proxy.URL())
	awaitListener(t, other)
	const both = beginStatements + commitStatements
	c.want("a transaction that does nothing",
		wire{2, both, sentBegin + " " + sentCommit, looked + " " + stored}, nil, c.transact(nothing))
	c.want("a transaction over a released record",
		wire{2, both, sentBegin + " PBEPBES", looked + " 12DC12CZ"}, c.released, c.transact(nothing))
	declined := wire{2, beginStatements + 1, sentBegin + " " + sentRollback, looked + " " + rolledBack}
	c.want("a replay", declined, c.transact(nothing), c.decline(c.store, store.DecisionReplay))
	c.want("a mismatch", declined, c.transact(nothing), c.decline(c.store, store.DecisionMismatch, another))
	c.want("a replay through Reserve", wire{1, 1, "BES", "2DCZ"}, c.transact(nothing), c.reserve(store.DecisionReplay))
	c.wantWithin("a conflict in the process", got, c.decline(c.store, store.DecisionInProgress))
	conflict := wire{2, beginStatements + 1, sentBegin + " " + sentRollback, looked + " " + rolledBack}
	c.wantWithin("a conflict", conflict, c.decline(other, store.DecisionInProgress))
}

// TestRoundTripsOfHandlers: a statement of a handler costs a round trip, and one more to prepare it when a connection
// runs it for the first time. A message of the answer costs none.
func TestRoundTripsOfHandlers(t *testing.T) {
	t.Parallel()
	c := newTripping(t)
	must(t, c.store.InTx(t.Context(), func(ctx context.Context) error {
		_, err := postgres.Tx(ctx).Exec(ctx, `CREATE TABLE business (value text NOT NULL)`)
		return err
	}))
	box, err := outbox.New(c.store, outbox.Config{})
	must(t, err)
	query := c.queried()
	first, executed := c.executed()
	three := wire{3, 3, strings.Repeat(" "+executed.sent, 3)[1:], strings.Repeat(" "+executed.received, 3)[1:]}
	for _, test := range []struct {
		name string
		wire
		do func(ctx context.Context, key string) error
	}{
		{"a statement for the first time", first, func(ctx context.Context, key string) error {
			_, err := postgres.Tx(ctx).Exec(ctx, insertion+` -- `+key, key)
			return err
		}},
		{"a statement again", executed, func(ctx context.Context, key string) error {
			_, err := postgres.Tx(ctx).Exec(ctx, insertion, key)
			return err
		}},
		{"three statements", three, func(ctx context.Context, key string) (err error) {
			for range 3 {
				_, err = postgres.Tx(ctx).Exec(ctx, insertion, key)
			}
			return err
		}},
		{"a statement without parameters", wire{1, 1, "Q", "TDCZ"}, func(ctx context.Context, _ string) error {
			_, err := postgres.Tx(ctx).Exec(ctx, `SELECT 1`)
			return err
		}},
		{"a query", query, func(ctx context.Context, key string) (err error) {
			return postgres.Tx(ctx).QueryRow(ctx, insertion+` RETURNING value`, key).Scan(&key)
		}},
		{"a statement of database/sql", executed, func(ctx context.Context, key string) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, insertion, key)
			return err
		}},
		{
			"a prepared statement of database/sql",
			wire{
				5, 3, strings.Join([]string{first.sent, executed.sent, executed.sent, "CS"}, " "),
				strings.Join([]string{first.received, executed.received, executed.received, "3Z"}, " "),
			},
			func(ctx context.Context, key string) error {
				s, err := onceward.Tx(ctx).PrepareContext(ctx, insertion+` -- prepared`)
				if err != nil {
					return err
				}
				for range 3 {
					_, failed := s.ExecContext(ctx, key)
					err = errors.Join(err, failed)
				}
				return errors.Join(err, s.Close())
			},
		},
		{"a message", executed, func(ctx context.Context, key string) error {
			_, err := postgres.AddMessage(ctx, box, postgres.Tx(ctx), messageOf(key))
			return err
		}},
	} {
		want := wire{
			test.trips + 2, test.statements + beginStatements + commitStatements,
			sentBegin + " " + test.sent + " " + sentCommit, looked + " " + test.received + " " + stored,
		}
		c.want(test.name, want, nil, func(key string) {
			transacted(c, c.store, key, func(ctx context.Context) error { return test.do(ctx, key) })
		})
	}
	c.want("a message of the answer", wire{2, 6, sentBegin + " BE" + sentCommit, looked + " 2C" + stored}, nil,
		c.transact(func(ctx context.Context) error {
			_, err := box.AddToAnswer(ctx, messageOf("key"))
			return err
		}))
}
