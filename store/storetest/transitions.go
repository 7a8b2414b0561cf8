package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// action is an event as it is aimed at a record.
type action struct {
	name   string
	needed func(Instance) bool
	event  func(id store.ID, rec *store.Record) store.Event
	// global says that the event meets all records of the store.
	global bool
}

// testTransitions walks the table of section 4 in both directions: from each state, each event, allowed or refused.
func testTransitions(t *testing.T, h Harness) {
	chosen := actions(h.probe)
	for _, f := range fixtures(h.probe) {
		h.test(t, f.name, func(e *env) {
			targets := ids(len(chosen))
			f.build(e, targets)
			for i, a := range chosen {
				e.Run(a.name, func(t *testing.T) {
					e := e.with(t)
					if a.global { // those before it have met this record as well
						targets[i].Scope = "anew"
						f.build(e, targets[i:i+1])
					}
					e.check(targets[i], a)
				})
			}
		})
	}
}

// check applies an action to a record and holds the store to the model.
func (e *env) check(id store.ID, a action) {
	e.Helper()
	rec := e.get(id)
	if _, err := e.step(id, rec, a.event(id, &rec)); err != nil {
		e.Error(err)
	}
}

// testInvalid holds the store to refusing what no state allows, without a trace.
func testInvalid(t *testing.T, h Harness) {
	invalid := invalidActions(h.probe)
	for _, f := range ownerFixtures() {
		if f.name != "none" && f.name != "in progress" && f.name != "unknown" {
			continue
		}
		h.test(t, f.name, func(e *env) {
			targets := ids(len(invalid))
			f.build(e, targets)
			for i, a := range invalid {
				e.Run(a.name, func(t *testing.T) { e.with(t).check(targets[i], a) })
			}
		})
	}
}

func invalidActions(i Instance) []action {
	current := func(name string, ev store.Event) action {
		return action{name: name, event: func(_ store.ID, rec *store.Record) store.Event {
			ev := ev
			ev.Attempt = rec.Attempt
			return ev
		}}
	}
	all := []action{
		reserving("reserve without a fingerprint", fingerprints()),
		reserving("reserve without a nonce", nonce(store.Nonce{})),
		reserving("reserve without a lease", lease(0)),
		reserving("reserve with a negative lease", lease(-time.Second)),
		reserving("reserve with a lease of a nanosecond", lease(1)),
		reserving("reserve without a retention", retain(0)),
		current("extend by nothing", store.Event{Kind: store.EventExtend}),
		current("extend backwards", store.Event{Kind: store.EventExtend, Lease: -time.Second}),
		current("complete without an answer", store.Event{Kind: store.EventComplete}),
	}
	if has[store.Reconciler](i) {
		all = append(all, current("resolve a step at no point", store.Event{Kind: store.EventResolveStep}))
	}
	for _, status := range []int{-1, 0, 99, 1000} {
		done := &store.Completion{Response: store.Response{Status: status, Body: []byte("x")}}
		all = append(all, current(fmt.Sprint("complete with status ", status), store.Event{Kind: store.EventComplete, Completion: done}))
		if has[store.Reconciler](i) {
			all = append(all, current(fmt.Sprint("resolve with status ", status), store.Event{Kind: store.EventResolveCompleted, Completion: done}))
		}
	}
	return all
}

// actions returns every event that the store has a method for, in each way that matters.
func actions(i Instance) []action {
	all := slices.Concat(reserveActions(), ownerActions(), backgroundActions(), reconcilerActions(), busterActions())
	return slices.DeleteFunc(all, func(a action) bool { return a.needed != nil && !a.needed(i) })
}

// reserving is a reservation with the options.
func reserving(name string, options ...option) action {
	return action{name: name, event: func(id store.ID, _ *store.Record) store.Event {
		return store.Event{Kind: store.EventReserve, Reservation: request(id, options...)}
	}}
}

func reserveActions() []action {
	older := fingerprint("request")
	older.Secret = 6
	lost := fingerprint("request")
	lost.Secret = 99
	newRules := fingerprint("request")
	newRules.Rules = 2
	return []action{
		reserving("reserve"),
		reserving("reserve, longer retention", retain(3*calm)),
		reserving("reserve, finer than the clock", lease(calm+1), retain(3*calm+999)),
		reserving("reserve, resumable", resume),
		reserving("reserve, other fingerprint", fingerprints(fingerprint("other"))),
		reserving("reserve, other fingerprint, resumable", fingerprints(fingerprint("other")), resume),
		reserving("reserve, newer secret first", fingerprints(older, fingerprint("request"))),
		reserving("reserve, newer rules first", fingerprints(newRules, fingerprint("request"))),
		reserving("reserve, secret lost", fingerprints(lost)),
		reserving("reserve, rules unknown", fingerprints(newRules)),
		reserving("reserve, in a session", session(3)),
		reserving("reserve, in another session", session(4)),
		reserving("reserve, not to create", noCreate),
		reserving("reserve, to resume only", resumeOnly),
		reserving("reserve, to resume only, resumable", resumeOnly, resume),
		reserving("reserve, not to create, other fingerprint", noCreate, fingerprints(fingerprint("other"))),
		{name: "reserve, same nonce", event: func(id store.ID, rec *store.Record) store.Event {
			return store.Event{Kind: store.EventReserve, Reservation: request(id, nonce(rec.Nonce), resume)}
		}},
		{name: "reserve, same nonce, other fingerprint", event: func(id store.ID, rec *store.Record) store.Event {
			r := request(id, nonce(rec.Nonce), fingerprints(fingerprint("other")))
			return store.Event{Kind: store.EventReserve, Reservation: r}
		}},
	}
}

// byEveryAttempt aims an event at the current attempt, and at others, which are to be refused.
func byEveryAttempt(name string, needed func(Instance) bool, ev store.Event) []action {
	var aimed []action
	for offset, by := range []string{", older attempt", "", ", later attempt"} {
		aimed = append(aimed, action{name: name + by, needed: needed, event: func(_ store.ID, rec *store.Record) store.Event {
			ev := ev
			ev.Attempt = rec.Attempt + int64(offset) - 1
			return ev
		}})
	}
	return aimed
}

func ownerActions() []action {
	provided := answer("stored")
	provided.ProviderID, provided.Retention = "ch_2", 3*calm
	events := []struct {
		name string
		store.Event
	}{
		{"extend", store.Event{Kind: store.EventExtend, Lease: 2 * calm}},
		{"checkpoint", store.Event{Kind: store.EventCheckpoint, Checkpoint: store.Checkpoint{Point: "shipped", Data: []byte("more")}}},
		{"checkpoint, point only", store.Event{Kind: store.EventCheckpoint, Checkpoint: store.Checkpoint{Point: "shipped"}}},
		{"checkpoint, data only", store.Event{Kind: store.EventCheckpoint, Checkpoint: store.Checkpoint{Data: []byte("more")}}},
		{"checkpoint, empty data", store.Event{Kind: store.EventCheckpoint, Checkpoint: store.Checkpoint{Data: []byte{}}}},
		{"checkpoint, the provider's id", store.Event{Kind: store.EventCheckpoint, Checkpoint: store.Checkpoint{ProviderID: "ch_9"}}},
		{"checkpoint, not replayable", store.Event{Kind: store.EventCheckpoint, Checkpoint: store.Checkpoint{NotReplayable: true}}},
		{"complete", store.Event{Kind: store.EventComplete, Completion: answer("new")}},
		{"complete as stored", store.Event{Kind: store.EventComplete, Completion: answer("stored")}},
		{"complete with provider and retention", store.Event{Kind: store.EventComplete, Completion: provided}},
		{"complete with everything", store.Event{Kind: store.EventComplete, Completion: rich()}},
		{"release", store.Event{Kind: store.EventRelease, Reason: "card expired"}},
		{"abandon", store.Event{Kind: store.EventAbandon, Reason: "timeout"}},
	}
	var all []action
	for _, ev := range events {
		all = append(all, byEveryAttempt(ev.name, nil, ev.Event)...)
	}
	return all
}

func backgroundActions() []action {
	worker := func(name string, needed func(Instance) bool, ev store.Event) action {
		return action{
			name: name, needed: needed, global: true,
			event: func(store.ID, *store.Record) store.Event { return ev },
		}
	}
	reaps := has[store.Reaper]
	return []action{
		worker("sweep", has[store.Sweeper], store.Event{Kind: store.EventSweep}),
		worker("reap", reaps, store.Event{Kind: store.EventReap}),
		worker("reap softly", reaps, store.Event{Kind: store.EventReap, Soft: true}),
	}
}

func reconcilerActions() []action {
	needed := has[store.Reconciler]
	postpone := store.Event{Kind: store.EventPostpone, Lease: time.Minute, Reason: "not found yet"}
	all := slices.Concat(
		byEveryAttempt("resolve completed", needed, store.Event{Kind: store.EventResolveCompleted, Completion: rich()}),
		byEveryAttempt("resolve completed as stored", needed, store.Event{Kind: store.EventResolveCompleted, Completion: answer("stored")}),
		byEveryAttempt("resolve not executed", needed, store.Event{Kind: store.EventResolveNotExecuted, Reason: "never arrived"}),
	)
	all = append(all, byEveryAttempt("requeue", needed, store.Event{Kind: store.EventRequeue, Reason: "the provider is back"})...)
	for _, p := range []struct {
		name string
		store.Checkpoint
	}{
		{"", store.Checkpoint{Point: "shipped", Data: []byte("more"), ProviderID: "ch_3"}},
		{", point only", store.Checkpoint{Point: "shipped"}},
		{", as stored", store.Checkpoint{Point: "charged", Data: []byte("carried\x00\xff")}},
	} {
		ev := store.Event{Kind: store.EventResolveStep, Checkpoint: p.Checkpoint}
		all = append(all, byEveryAttempt("resolve step"+p.name, needed, ev)...)
	}
	for _, count := range []int{0, 1} {
		begin := store.Event{Kind: store.EventBeginReconcile, Lease: time.Minute, Count: count}
		all = append(all, byEveryAttempt(fmt.Sprintf("begin reconcile at %d", count), needed, begin)...)
		untried := store.Event{Kind: store.EventPostpone, Count: count, Untried: true, MaxAttempts: 1}
		all = append(all, byEveryAttempt(fmt.Sprintf("postpone at %d, untried", count), needed, untried)...)
		for _, limit := range []int{0, 1, 5} {
			postpone.MaxAttempts, postpone.Count = limit, count
			all = append(all, byEveryAttempt(fmt.Sprintf("postpone at %d, limit %d", count, limit), needed, postpone)...)
		}
	}
	return all
}

func busterActions() []action {
	busting := func(name string, force bool) action {
		return action{
			name: name, needed: has[store.Buster],
			event: func(store.ID, *store.Record) store.Event {
				return store.Event{Kind: store.EventBust, Force: force}
			},
		}
	}
	return []action{busting("bust", false), busting("bust by force", true)}
}
