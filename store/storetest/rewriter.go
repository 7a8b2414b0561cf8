package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// rewriterActions replace the content of a record with other bytes, in each way that matters.
func rewriterActions() []action {
	rewrite := func(name string, change func(ev *store.Event)) action {
		return action{
			name: name, needed: has[store.Rewriter],
			event: func(_ store.ID, rec *store.Record) store.Event {
				ev := store.Event{
					Kind: store.EventRewrite, Attempt: rec.Attempt, From: rec.Content(), To: rewritten(rec.Content()),
				}
				change(&ev)
				return ev
			},
		}
	}
	return []action{
		rewrite("rewrite", func(*store.Event) {}),
		rewrite("rewrite by what is there", func(ev *store.Event) { ev.To = ev.From }),
		rewrite("rewrite again", func(ev *store.Event) { ev.From, ev.To = ev.To, ev.From }),
		rewrite("rewrite, other attempt", func(ev *store.Event) { ev.Attempt-- }),
		rewrite("rewrite, other answer there", func(ev *store.Event) {
			ev.From.Response.Body = append(bytes.Clone(ev.From.Response.Body), 'x')
		}),
		rewrite("rewrite, other data there", func(ev *store.Event) { ev.From.Data = []byte("x"); ev.To.Data = []byte("y") }),
		rewrite("rewrite to another status", func(ev *store.Event) { ev.To.Response.Status++ }),
		rewrite("rewrite to no data", func(ev *store.Event) { ev.From.Data, ev.To.Data = []byte("x"), nil }),
	}
}

// rewritten returns content with other bytes in each of its fields.
func rewritten(c store.Content) store.Content {
	if c.Response.Status != 0 {
		c.Response.Header = append(slices.Clone(c.Response.Header), store.HeaderField{Name: "X-Rewritten", Value: "\x00\xff"})
		c.Response.Body = append([]byte("other bytes: "), c.Response.Body...)
	}
	if len(c.Data) > 0 {
		c.Data = append([]byte("other bytes: "), c.Data...)
	}
	return c
}

// testRewriter checks that all readers see a rewrite, that it changes nothing else, and that an owner's write has
// precedence.
func testRewriter(t *testing.T, h Harness) {
	h.test(t, "an answer", func(e *env) {
		c := e.own(id("key"))
		e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Point: "charged", Data: []byte("carried")}))
		_, err := e.Store.Complete(e.ctx, c, rich())
		e.must(err)
		before := e.get(c.ID)
		want := before
		to := rewritten(before.Content())
		want.Response, want.Data = to.Response, to.Data
		e.must(e.Store.(store.Rewriter).Rewrite(e.ctx, c, before.Content(), to))
		if diff := diffRecords(e.get(c.ID), want, 0); diff != "" {
			e.Errorf("a rewrite changes the content alone: %s", diff)
		}
		v := e.wantDecision(request(c.ID), store.DecisionReplay, "a rewritten record replays")
		e.sameResponse("the replay", v.Record.Response, to.Response)
	})
	h.test(t, "an owner goes on", func(e *env) {
		c := e.own(id("key"), resume)
		e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Point: "charged", Data: []byte("first")}))
		rec := e.get(c.ID)
		read := rec.Content()
		e.must(e.Store.(store.Rewriter).Rewrite(e.ctx, c, read, rewritten(read)))
		e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Data: []byte("second")}))
		e.wantFenced(e.Store.(store.Rewriter).Rewrite(e.ctx, c, read, rewritten(read)), "what the owner wrote since stays")
		if got := e.get(c.ID).Data; string(got) != "second" {
			e.Errorf("the record carries %q, want what its owner wrote last", got)
		}
		e.complete(c, "done")
	})
	h.test(t, "no record", func(e *env) {
		c := store.Claim{ID: id("key"), Attempt: 1}
		e.wantFenced(e.Store.(store.Rewriter).Rewrite(e.ctx, c, store.Content{}, store.Content{}), "there is no record")
	})
	for name, meets := range rewriteRaces() {
		h.test(t, "races/"+name, func(e *env) { e.raceRewrite(meets) })
	}
	if has[store.TxCheckpointer](h.probe) {
		h.test(t, "during a step", rewrittenDuringStep)
	}
	if has[store.Transactor](h.probe) {
		h.test(t, "during a transaction", rewrittenDuringTransaction)
	}
}

// rewriteRace is a write that keeps the data of a record, and whether the record is released before it.
type rewriteRace struct {
	released bool
	write    func(e *env, c store.Claim) error
}

// rewriteRaces are the writes that keep the data of a record.
func rewriteRaces() map[string]rewriteRace {
	return map[string]rewriteRace{
		"retry": {released: true, write: func(e *env, c store.Claim) error {
			v, err := e.Store.Reserve(e.ctx, request(c.ID))
			if err == nil && v.Origin != store.OriginRetried {
				err = fmt.Errorf("a retry got (%s, %s)", v.Decision, v.Origin)
			}
			return err
		}},
		"complete": {write: func(e *env, c store.Claim) error {
			_, err := e.Store.Complete(e.ctx, c, answer("done"))
			return err
		}},
		"checkpoint": {write: func(e *env, c store.Claim) error {
			return e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Point: "shipped"})
		}},
		"extend":  {write: func(e *env, c store.Claim) error { return e.Store.Extend(e.ctx, c, calm) }},
		"release": {write: func(e *env, c store.Claim) error { return e.Store.Release(e.ctx, c, "no stock") }},
		"abandon": {write: func(e *env, c store.Claim) error { return e.Store.Abandon(e.ctx, c, "timeout") }},
	}
}

// raceRewrite makes rewrites race with another write, each on a record of its own.
func (e *env) raceRewrite(meets rewriteRace) {
	e.Helper()
	const pairs = crowd / 2
	claims := make([]store.Claim, pairs)
	from := make([]store.Content, pairs)
	for i, target := range ids(pairs) {
		claims[i], from[i] = e.carrying(target, meets.released)
	}
	rewrites, writes := make([]error, pairs), make([]error, pairs)
	together(2*pairs, func(i int) {
		c := claims[i/2]
		if i%2 == 0 {
			rewrites[i/2] = e.Store.(store.Rewriter).Rewrite(e.ctx, c, from[i/2], rewritten(from[i/2]))
		} else {
			writes[i/2] = meets.write(e, c)
		}
	})
	e.must(errors.Join(writes...))
	for i, c := range claims {
		e.checkRewritten(c.ID, from[i], rewrites[i])
	}
}

// carrying makes a record with data, which its owner holds or which is released.
func (e *env) carrying(target store.ID, released bool) (store.Claim, store.Content) {
	e.Helper()
	c := e.own(target)
	e.must(e.Store.Checkpoint(e.ctx, c, checkpointAt("charged")))
	if released {
		e.must(e.Store.Release(e.ctx, c, "no stock"))
	}
	rec := e.get(target)
	return c, rec.Content()
}

// checkRewritten checks that a successful rewrite is not undone by a write at the same time, and that a refused rewrite
// changed nothing.
func (e *env) checkRewritten(target store.ID, from store.Content, err error) {
	e.Helper()
	want := from.Data
	if err == nil {
		want = rewritten(from).Data
	} else {
		e.wantFenced(err, "a rewrite that came too late")
	}
	if rec := e.get(target); string(rec.Data) != string(want) {
		e.Errorf("S6: a rewrite got %v, and record %q carries %q, want %q", err, target.Key, rec.Data, want)
	}
}

// rewrittenDuringStep rewrites data during a step that does not change it.
func rewrittenDuringStep(e *env) {
	c, from := e.carrying(id("key"), false)
	var rewriteErr error
	var ended <-chan struct{}
	e.must(e.checkpointTx(c, e.stepping("row", func(context.Context) (store.Checkpoint, error) {
		if ended == nil {
			ended = beside(func() { rewriteErr = e.Store.(store.Rewriter).Rewrite(e.ctx, c, from, rewritten(from)) })
		}
		return store.Checkpoint{Point: "shipped"}, nil
	})))
	await.Value(e, "the end of the rewrite", ended)
	e.must(rewriteErr) // no other attempt has begun
	e.checkRewritten(c.ID, from, rewriteErr)
	e.wantRows("row", 1, "E3: a step whose data was rewritten meanwhile")
	if rec := e.get(c.ID); rec.Point != "shipped" {
		e.Errorf("E3: the record is at point %q", rec.Point)
	}
}

// rewrittenDuringTransaction rewrites data of the previous attempt during a transaction.
func rewrittenDuringTransaction(e *env) {
	c, from := e.carrying(id("key"), true)
	var rewriteErr error
	var ended <-chan struct{}
	e.transacted(request(c.ID), e.inserting("row", func(ctx context.Context, v store.Verdict) store.Settlement {
		if ended == nil {
			ended = beside(func() { rewriteErr = e.Store.(store.Rewriter).Rewrite(e.ctx, c, from, rewritten(from)) })
		}
		return committing("done")(ctx, v)
	}), store.DecisionExecute, "E1: a record that may be retried")
	await.Value(e, "the end of the rewrite", ended)
	e.checkRewritten(c.ID, from, rewriteErr)
	e.wantRows("row", 1, "E1: a transaction whose record was rewritten meanwhile")
	e.wantState(c.ID, store.StateCompleted, "E1: a transaction whose record was rewritten meanwhile")
}
