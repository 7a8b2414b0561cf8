package storetest

import (
	"time"

	"github.com/onceward/onceward/store"
)

// fixture is a way to bring records into one state.
type fixture struct {
	name string
	want store.State
	// absent means that a reservation treats the record as if there were none.
	absent bool
	// needed reports whether such a store can get there; nil for every store.
	needed func(Instance) bool
	// begin makes one record.
	begin func(e *env, id store.ID)
	// end finishes what was begun for all records at once, because time passes for all.
	end func(e *env)
}

// target is a record that was built, with its content at that time.
type target struct {
	store.ID
	before store.Record
}

// build makes a record for each ID and checks that it has the right state.
func (f *fixture) build(e *env, ids []store.ID) (built []target) {
	e.Helper()
	for _, id := range ids {
		f.begin(e, id)
	}
	if f.end != nil {
		f.end(e)
	}
	for _, id := range ids {
		rec := e.get(id)
		if rec.State != f.want {
			e.Fatalf("section 4: record %q is %s, want %s", id.Key, rec.State, f.want)
		}
		e.tokens[id] = rec.Attempt
		built = append(built, target{id, rec})
	}
	return built
}

// stock returns records of a fixture, one after the other. A record that an event has left unchanged is used again: an
// unnoticed change by the event shows at the next event.
type stock struct {
	of    *fixture
	ids   []store.ID
	built []target
}

// builtAtOnce is how many records of a stock are built at once: for some records time has to pass.
const builtAtOnce = 8

// stock returns a stock for a number of events.
func (f *fixture) stock(events int) *stock { return &stock{of: f, ids: ids(events + 2*builtAtOnce)} }

// renew builds n new records instead of the current ones.
func (s *stock) renew(e *env, n int) {
	e.Helper()
	s.built = s.of.build(e, s.ids[:n])
	s.ids = s.ids[n:]
}

func (s *stock) next(e *env) target {
	e.Helper()
	if len(s.built) == 0 {
		s.renew(e, builtAtOnce)
	}
	return s.built[0]
}

// met drops the current record if the event has changed it.
func (s *stock) met(after store.Record) {
	if diffRecords(after, s.built[0].before, 0) != "" {
		s.built = s.built[1:]
	}
}

// fixtures returns each state that a record of the store can be in, with each way that leads there.
func fixtures(i Instance) []fixture {
	var possible []fixture
	for _, f := range append(ownerFixtures(), backgroundFixtures()...) {
		if f.needed == nil || f.needed(i) {
			possible = append(possible, f)
		}
	}
	return possible
}

// lapse lets brief leases and retentions run out.
func lapse(e *env) { e.pass(e.brief()) }

// ownerFixtures are the states that owners can cause.
func ownerFixtures() []fixture {
	return []fixture{
		{name: "none", want: store.StateNone, absent: true, begin: func(*env, store.ID) {}},
		{name: "in progress", want: store.StateInProgress, begin: func(e *env, id store.ID) { e.own(id) }},
		{
			name: "in progress, resumable", want: store.StateInProgress,
			begin: func(e *env, id store.ID) { e.own(id, resume) },
		},
		{
			name: "in progress at a point", want: store.StateInProgress,
			begin: func(e *env, id store.ID) { e.ownAtPoint(id) },
		},
		{
			name: "in progress with data", want: store.StateInProgress,
			begin: func(e *env, id store.ID) {
				e.must(e.Store.Checkpoint(e.ctx, e.own(id), store.Checkpoint{Data: []byte("carried")}))
			},
		},
		{
			name: "in progress, lease over", want: store.StateInProgress,
			begin: func(e *env, id store.ID) { e.own(id, lease(e.brief())) }, end: lapse,
		},
		{
			name: "in progress, resumable, lease over", want: store.StateInProgress,
			begin: func(e *env, id store.ID) { e.ownAtPoint(id, resume, lease(e.brief())) }, end: lapse,
		},
		{
			name: "completed", want: store.StateCompleted,
			begin: func(e *env, id store.ID) { e.complete(e.own(id), "stored") },
		},
		{
			name: "completed with everything", want: store.StateCompleted,
			begin: func(e *env, id store.ID) {
				_, err := e.Store.Complete(e.ctx, e.ownAtPoint(id, session(3)), rich())
				e.must(err)
			},
		},
		{
			name: "completed, past its expiry", want: store.StateCompleted, absent: true,
			begin: func(e *env, id store.ID) { e.complete(e.own(id, retain(e.brief())), "stored") }, end: lapse,
		},
		{
			name: "retryable", want: store.StateRetryable,
			begin: func(e *env, id store.ID) { e.must(e.Store.Release(e.ctx, e.ownAtPoint(id), "no stock")) },
		},
		{
			name: "retryable, past its expiry", want: store.StateRetryable, absent: true,
			begin: func(e *env, id store.ID) {
				e.must(e.Store.Release(e.ctx, e.own(id, retain(e.brief())), "no stock"))
			},
			end: lapse,
		},
		{
			name: "rejected", want: store.StateExpired, absent: true,
			begin: func(e *env, id store.ID) { e.must(e.Store.Reject(e.ctx, e.own(id, resume))) },
		},
		{name: "unknown", want: store.StateUnknown, begin: func(e *env, id store.ID) { e.lose(id) }},
		{
			name: "unknown by a reservation", want: store.StateUnknown,
			begin: func(e *env, id store.ID) {
				c := e.own(id, lease(e.resolution()))
				e.until(e.get(c.ID).LeaseUntil)
				e.reserve(request(id))
			},
		},
	}
}

// backgroundFixtures are the states that only workers and operators can cause.
func backgroundFixtures() []fixture {
	reaps := has[store.Reaper]
	sweeps := has[store.Sweeper]
	busts := has[store.Buster]
	reconciles := has[store.Reconciler]
	expiring := func(e *env, id store.ID) { e.complete(e.own(id, retain(e.brief())), "stored") }
	return []fixture{
		{
			name: "unknown by the sweeper", want: store.StateUnknown, needed: sweeps,
			begin: func(e *env, id store.ID) { e.own(id, lease(e.brief())) },
			end:   func(e *env) { lapse(e); e.sweep(everything) },
		},
		{
			name: "unknown, postponed", want: store.StateUnknown, needed: reconciles,
			begin: func(e *env, id store.ID) { e.postpone(e.lose(id), 3) },
		},
		{
			name: "unknown, dead letter", want: store.StateUnknown, needed: reconciles,
			begin: func(e *env, id store.ID) { e.postpone(e.lose(id), 1) },
		},
		{
			name: "unknown, being asked after", want: store.StateUnknown, needed: reconciles,
			begin: func(e *env, id store.ID) {
				e.must(e.resolver().BeginReconcile(e.ctx, e.lose(id), 0, time.Minute))
			},
		},
		{
			name: "unknown, at a point", want: store.StateUnknown,
			begin: func(e *env, id store.ID) {
				e.must(e.Store.Abandon(e.ctx, e.ownAtPoint(id, resume), "lost in doubt"))
			},
		},
		{
			name: "in progress by a resolved step", want: store.StateInProgress, needed: reconciles,
			begin: func(e *env, id store.ID) { e.resolveStep(id) },
		},
		{
			name: "unknown, requeued", want: store.StateUnknown, needed: reconciles,
			begin: func(e *env, id store.ID) {
				c := e.lose(id)
				e.postpone(c, 1)
				e.requeue(c, "the provider is back")
			},
		},
		{
			name: "completed by resolution", want: store.StateCompleted, needed: reconciles,
			begin: func(e *env, id store.ID) {
				e.must(e.Store.(store.Reconciler).ResolveCompleted(e.ctx, e.lose(id), answer("stored")))
			},
		},
		{
			name: "retryable by resolution", want: store.StateRetryable, needed: reconciles,
			begin: func(e *env, id store.ID) { e.resolveNotExecuted(e.lose(id)) },
		},
		{
			name: "in progress after a resolution", want: store.StateInProgress, needed: reconciles,
			begin: func(e *env, id store.ID) { e.resolveNotExecuted(e.lose(id)); e.own(id) },
		},
		{
			name: "unknown after a resolution", want: store.StateUnknown, needed: reconciles,
			begin: func(e *env, id store.ID) { e.resolveNotExecuted(e.lose(id)); e.lose(id) },
		},
		{
			name: "expired", want: store.StateExpired, absent: true, needed: reaps, begin: expiring,
			end: func(e *env) { lapse(e); e.reap(everything, true) },
		},
		{
			name: "expired, its token no longer kept", want: store.StateExpired, absent: true, needed: reaps,
			begin: expiring,
			end:   func(e *env) { lapse(e); e.reap(everything, true); lapse(e) },
		},
		{
			name: "reaped", want: store.StateNone, absent: true, needed: reaps, begin: expiring,
			end: func(e *env) { lapse(e); e.reap(everything, false) },
		},
		{
			name: "busted", want: store.StateNone, absent: true, needed: busts,
			begin: func(e *env, id store.ID) { e.complete(e.own(id), "stored"); e.bust(id, false) },
		},
		{
			name: "busted by force", want: store.StateExpired, absent: true, needed: busts,
			begin: func(e *env, id store.ID) { e.own(id); e.bust(id, true) },
		},
	}
}

// ownAtPoint reserves and records a checkpoint.
func (e *env) ownAtPoint(id store.ID, options ...option) store.Claim {
	e.Helper()
	c := e.own(id, options...)
	e.must(e.Store.Checkpoint(e.ctx, c,
		store.Checkpoint{Point: "charged", Data: []byte("carried\x00\xff"), NotReplayable: true}))
	return c
}

// lose makes an unknown record.
func (e *env) lose(id store.ID, options ...option) store.Claim {
	e.Helper()
	c := e.own(id, options...)
	e.must(e.Store.Abandon(e.ctx, c, "connection reset"))
	return c
}

// resolveNotExecuted settles an unknown record so that it may be retried.
func (e *env) resolveNotExecuted(c store.Claim) {
	e.Helper()
	e.must(e.resolver().ResolveNotExecuted(e.ctx, c, "never arrived"))
}

// postpone makes a reconciliation attempt at an unknown record that finds no outcome.
func (e *env) postpone(c store.Claim, limit int) {
	e.Helper()
	count := e.get(c.ID).ReconcileCount
	e.must(e.resolver().BeginReconcile(e.ctx, c, count, time.Minute))
	e.must(e.resolver().Postpone(e.ctx, c, notYet(count+1, limit)))
}

// notYet returns the postponement after the reconciliation attempt of that number, which found no outcome.
func notYet(count, limit int) store.Postponement {
	return store.Postponement{Count: count, Wait: time.Minute, MaxAttempts: limit, Reason: "provider is down"}
}

func (e *env) sweep(limit int) int {
	e.Helper()
	swept, err := e.Store.(store.Sweeper).Sweep(e.ctx, limit)
	e.must(err)
	return swept
}

func (e *env) reap(limit int, soft bool) int {
	e.Helper()
	reaped, err := e.Store.(store.Reaper).Reap(e.ctx, limit, soft)
	e.must(err)
	return reaped
}

func (e *env) bust(id store.ID, force bool) {
	e.Helper()
	e.must(e.Store.(store.Buster).Bust(e.ctx, id, force))
}

// rich returns a completion that uses every field.
func rich() *store.Completion {
	return &store.Completion{
		Response: store.Response{
			Status: 402,
			Header: []store.HeaderField{
				{Name: "Content-Type", Value: "application/json"},
				{Name: "Link", Value: "</a>; rel=next"},
				{Name: "Link", Value: "</b>; rel=last", Append: true},
			},
			Body: []byte(`{"declined":true}`),
		},
		Retention:  2 * calm,
		ProviderID: "ch_1Nv",
	}
}

// session binds the request to a caller's session.
func session(n byte) option {
	return func(r *store.Reservation) {
		for i := range r.Fingerprints {
			r.Fingerprints[i].Session = [16]byte{n}
		}
	}
}
