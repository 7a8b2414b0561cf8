package storetest

import (
	"bytes"
	"slices"
	"testing"

	"github.com/onceward/onceward/store"
)

// rewriterActions put other bytes in the place of a record's content, in each way that matters.
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

// rewritten is content with other bytes in each of its places.
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

// testRewriter checks that a rewrite is seen by all who read, changes nothing else, and gives way to an owner.
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
}
