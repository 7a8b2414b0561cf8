package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward/store"
)

// testRandom sends random sequences of events to a few records, and compares each answer and each record with a model
// that applies [store.Step].
func testRandom(t *testing.T, h Harness) {
	e := open(t, h)
	begin := e.moving()
	checks := 0
	rapid.Check(t, func(rt *rapid.T) {
		begin()
		checks++
		m := newWalk(e, fmt.Sprint("check ", checks))
		if err := m.quiet(); err != nil {
			rt.Fatal(err)
		}
		moves := m.moves()
		for name, move := range moves {
			moves[name] = func(rt *rapid.T) {
				begin()
				move(rt)
			}
		}
		rt.Repeat(moves)
	})
}

// walk is one random sequence on a store that it shares with the earlier sequences; its records are in a scope of its
// own.
type walk struct {
	*env
	ids []store.ID
	// model contains the expected content of each record.
	model map[store.ID]store.Record
	// nonces are the nonces that were used; some are used again.
	nonces []store.Nonce
}

func newWalk(e *env, scope string) *walk {
	w := &walk{env: e, model: make(map[store.ID]store.Record), nonces: []store.Nonce{request(store.ID{}).Nonce}}
	for _, key := range []string{"a", "A", "0190b5f2-7c3a-7def-8abc-0123456789ab"} {
		w.ids = append(w.ids, store.ID{Scope: scope, Key: key})
	}
	return w
}

// quiet settles or removes the records of earlier sequences, so that background work finds only the records of this
// one.
func (w *walk) quiet() error {
	for range 2 {
		w.Advance(100 * calm)
		if has[store.Sweeper](w.Instance) {
			if r := w.do(store.ID{}, store.Event{Kind: store.EventSweep}); r.err != nil {
				return r.err
			}
		}
		if has[store.Reaper](w.Instance) {
			if r := w.do(store.ID{}, store.Event{Kind: store.EventReap}); r.err != nil {
				return r.err
			}
		}
	}
	return nil
}

// moves returns the possible moves.
func (w *walk) moves() map[string]func(*rapid.T) {
	moves := map[string]func(*rapid.T){
		"reserve":       w.reserveMove,
		"reserve again": w.reserveMove, // the most frequent of all
		"own":           w.ownerMove,
		"advance":       func(rt *rapid.T) { w.Advance(drawDuration(rt)) },
		"to a boundary": w.boundaryMove,
	}
	if has[store.Sweeper](w.Instance) {
		moves["sweep"] = func(rt *rapid.T) { w.workerMove(rt, store.Event{Kind: store.EventSweep}) }
	}
	if has[store.Reaper](w.Instance) {
		moves["reap"] = func(rt *rapid.T) {
			w.workerMove(rt, store.Event{Kind: store.EventReap, Soft: rapid.Bool().Draw(rt, "soft")})
		}
	}
	if has[store.Reconciler](w.Instance) {
		moves["resolve"] = w.resolveMove
	}
	if has[store.Buster](w.Instance) {
		moves["bust"] = func(rt *rapid.T) {
			w.apply(rt, w.drawID(rt), store.Event{Kind: store.EventBust, Force: rapid.Bool().Draw(rt, "force")})
		}
	}
	if has[store.Retainer](w.Instance) {
		moves["retain"] = func(rt *rapid.T) {
			w.apply(rt, w.drawID(rt), store.Event{Kind: store.EventRetain, Lease: drawDuration(rt)})
		}
	}
	if has[store.Transactor](w.Instance) {
		moves["transact"] = w.transactMove
	}
	return moves
}

func (w *walk) drawID(rt *rapid.T) store.ID { return rapid.SampledFrom(w.ids).Draw(rt, "id") }

func drawDuration(rt *rapid.T) time.Duration {
	return rapid.SampledFrom([]time.Duration{
		time.Microsecond, time.Second, 30 * time.Second, time.Minute,
		calm,
	}).Draw(rt, "duration")
}

func drawAnswer(rt *rapid.T) *store.Completion {
	done := answer(rapid.SampledFrom([]string{"", "one", "two"}).Draw(rt, "answer"))
	done.Retention = rapid.SampledFrom([]time.Duration{0, time.Minute, 2 * calm}).Draw(rt, "retention")
	done.ProviderID = rapid.SampledFrom([]string{"", "ch_1"}).Draw(rt, "provider")
	return done
}

func (w *walk) drawReservation(rt *rapid.T) *store.Reservation {
	r := request(w.drawID(rt), lease(drawDuration(rt)), retain(drawDuration(rt)))
	current := fingerprint(rapid.SampledFrom([]string{"request", "request", "request", "other"}).Draw(rt, "payload"))
	newer := store.Fingerprint{Secret: 8, Rules: 1, Sum: current.Sum}
	r.Fingerprints = rapid.SampledFrom([][]store.Fingerprint{{current}, {newer, current}, {newer}}).Draw(rt,
		"fingerprints")
	r.NoCreate = rapid.IntRange(0, 4).Draw(rt, "create") == 0
	r.ResumeOnly = rapid.IntRange(0, 4).Draw(rt, "resume only") == 0
	r.OnLost = store.LostPolicy(rapid.IntRange(0, 1).Draw(rt, "policy"))
	if rapid.IntRange(0, 3).Draw(rt, "repeat") == 0 {
		r.Nonce = rapid.SampledFrom(w.nonces).Draw(rt, "nonce")
	}
	w.nonces = append(w.nonces, r.Nonce)
	return r
}

// drawAttempt returns the current attempt of a record, most of the time.
func (w *walk) drawAttempt(rt *rapid.T, id store.ID) int64 {
	return w.model[id].Attempt + rapid.SampledFrom([]int64{0, 0, 0, 0, -1, 1}).Draw(rt, "attempt")
}

func (w *walk) reserveMove(rt *rapid.T) {
	r := w.drawReservation(rt)
	w.apply(rt, r.ID, store.Event{Kind: store.EventReserve, Reservation: r})
}

func (w *walk) ownerMove(rt *rapid.T) {
	target := w.drawID(rt)
	ev := store.Event{
		Kind:    store.EventKind(rapid.IntRange(int(store.EventExtend), int(store.EventReject)).Draw(rt, "kind")),
		Attempt: w.drawAttempt(rt, target),
		Lease:   drawDuration(rt),
		Reason:  "because",
		Checkpoint: store.Checkpoint{
			Point:         rapid.SampledFrom([]string{"", "charged", "shipped"}).Draw(rt, "point"),
			Data:          rapid.SampledFrom([][]byte{nil, {}, []byte("carried")}).Draw(rt, "data"),
			NotReplayable: rapid.Bool().Draw(rt, "not replayable"),
			ProviderID:    rapid.SampledFrom([]string{"", "ch_1", "ch_2"}).Draw(rt, "provider's id"),
		},
	}
	if ev.Kind == store.EventComplete {
		ev.Completion = drawAnswer(rt)
	}
	w.apply(rt, target, ev)
}

// resolutions are the events from outside for an unknown record. Most often it is postponed, so that there are dead
// letters.
var resolutions = []store.EventKind{
	store.EventResolveCompleted, store.EventResolveNotExecuted, store.EventResolveStep, store.EventResolveStep,
	store.EventBeginReconcile, store.EventBeginReconcile, store.EventPostpone, store.EventPostpone,
	store.EventRequeue,
}

func (w *walk) resolveMove(rt *rapid.T) {
	target := w.drawID(rt)
	ev := store.Event{
		Kind:        rapid.SampledFrom(resolutions).Draw(rt, "kind"),
		Attempt:     w.drawAttempt(rt, target),
		Lease:       drawDuration(rt),
		MaxAttempts: rapid.IntRange(0, 3).Draw(rt, "limit"),
		Count:       w.model[target].ReconcileCount + rapid.SampledFrom([]int{0, 0, 0, -1, 1}).Draw(rt, "count"),
		Untried:     rapid.Bool().Draw(rt, "untried"),
		Reason:      "because",
		Checkpoint: store.Checkpoint{
			Point: rapid.SampledFrom([]string{"", "charged", "shipped", "shipped"}).Draw(rt, "point"),
			Data:  rapid.SampledFrom([][]byte{nil, {}, []byte("carried")}).Draw(rt, "data"),
		},
	}
	if ev.Kind == store.EventResolveCompleted {
		ev.Completion = drawAnswer(rt)
	}
	w.apply(rt, target, ev)
}

// boundaryMove moves the clock to just before, at, or just after the moment at which a record is due.
func (w *walk) boundaryMove(rt *rapid.T) {
	rec := w.model[w.drawID(rt)]
	offset := time.Duration(rapid.IntRange(-1, 1).Draw(rt, "offset")) * w.resolution()
	now, err := w.clock()
	if err != nil {
		rt.Fatal(err)
	}
	if d := rec.Due().Add(offset).Sub(now); !rec.Due().IsZero() && d > 0 {
		w.Advance(d)
	}
}

// apply sends an event to the store and the model, which must agree about it and about every record after it.
func (w *walk) apply(rt *rapid.T, target store.ID, ev store.Event) {
	after, err := w.step(target, w.model[target], ev)
	if err != nil {
		rt.Fatal(err)
	}
	w.model[target] = after
	w.compare(rt, target)
}

// workerMove sends background work to all records at once.
func (w *walk) workerMove(rt *rapid.T, ev store.Event) {
	now, err := w.clock()
	if err != nil {
		rt.Fatal(err)
	}
	if r := w.do(store.ID{}, ev); r.err != nil {
		rt.Fatal(r.err)
	}
	for _, id := range w.ids {
		before := w.model[id]
		rec, outcome, err := store.Step(before, ev, now)
		if err != nil {
			rt.Fatal(err)
		}
		switch outcome.Effect {
		case store.EffectWrite:
			w.model[id] = rec
		case store.EffectRemove:
			delete(w.model, id)
		}
		c := change{before: before, after: w.model[id], event: ev, from: now, to: now}
		if err := c.obeys(); err != nil {
			rt.Fatal(err)
		}
	}
	w.compare(rt, store.ID{})
}

// transactMove runs a transaction; its effect on the record is a reserve and a complete in one.
func (w *walk) transactMove(rt *rapid.T) {
	r := w.drawReservation(rt)
	r.OnLost = store.LostReconcile // a phased operation is not transactional
	end := store.TxAction(rapid.IntRange(0, 2).Draw(rt, "action"))
	done := drawAnswer(rt)
	before := w.model[r.ID]
	now, err := w.clock()
	if err != nil {
		rt.Fatal(err)
	}
	_, outcome, wantErr := store.Step(before, store.Event{Kind: store.EventReserve, Reservation: r}, now)
	if outcome.Origin == store.OriginRepeated {
		return // all callers use one mode
	}
	ran := false
	got, err := w.transact(r, func(context.Context, store.Verdict) store.Settlement {
		ran = true
		return store.Settlement{Action: end, Completion: *done}
	})
	if problem := sameError(err, wantErr); problem != nil {
		rt.Fatalf("transact: %v", problem)
	}
	if execute := outcome.Decision == store.DecisionExecute; ran != execute || wantErr == nil &&
		got.Decision != outcome.Decision {
		rt.Fatalf("E1: transact of what was %s got %s, executed %t, want %s", describe(before), got.Decision, ran,
			outcome.Decision)
	}
	if ran && end != store.TxRollback {
		w.settled(rt, before, r, done, now)
	}
	if outcome.Decision == store.DecisionUnknown {
		// The store may record the lost owner now, or when the next caller arrives.
		rec := w.get(r.ID)
		if rec.State == store.StateUnknown {
			w.model[r.ID] = rec
		}
	}
	w.compare(rt, store.ID{})
}

// settled applies a committed transaction to the model.
func (w *walk) settled(rt *rapid.T, before store.Record, r *store.Reservation, done *store.Completion, now time.Time) {
	token := w.get(r.ID).Attempt
	if token <= w.tokens[r.ID] {
		rt.Fatalf("S7: attempt %d was granted after attempt %d", token, w.tokens[r.ID])
	}
	w.tokens[r.ID] = token
	rec, _, _ := store.Step(before, store.Event{Kind: store.EventReserve, Reservation: r, Token: token}, now)
	rec, _, err := store.Step(rec, store.Event{Kind: store.EventComplete, Attempt: rec.Attempt, Completion: done}, now)
	if err != nil {
		rt.Fatal(err)
	}
	w.model[r.ID] = rec
}

// compare compares every record with the model, except the record that step has already checked.
func (w *walk) compare(rt *rapid.T, judged store.ID) {
	for _, id := range w.ids {
		if id == judged {
			continue
		}
		rec, err := w.find(id)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := diffRecords(rec, w.model[id], 0); diff != "" {
			rt.Fatalf("H8: an event on another record, or a worker, left record %q %s", id.Key, diff)
		}
	}
}
