package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// testOutboxOperator checks what operators can see and do (O3).
func testOutboxOperator(t *testing.T, h Harness) {
	h.test(t, "messages by what they are", filteredMessages)
	h.test(t, "messages since a moment, of a clock that was set back", messagesOfAClockSetBack)
	h.test(t, "messages page by page", pagedMessages)
	h.test(t, "replay", replays)
	h.test(t, "drop", drops)
	h.test(t, "what cannot be replayed or dropped", notDeadLetters)
	h.test(t, "counted", messageStats)
}

// oneOfEach makes a message in each state.
func (e *env) oneOfEach() map[outbox.State]string {
	e.Helper()
	ids := make(map[outbox.State]string)
	for _, state := range []outbox.State{outbox.StateDone, outbox.StateDead, outbox.StateHolding, outbox.StateLeased} {
		ids[state] = e.add(about("aggregate "+state.String(), state.String()))[0]
		claimed := e.claimOne(ids[state], "O2")
		if state != outbox.StateLeased {
			e.finish(to(state, claimed))
		}
	}
	run := append(e.lane("behind", 1), e.lane("behind", 1)...)
	claimed := e.claim(everything)
	e.wantRun(claimed, "O2", run...)
	e.finish(to(outbox.StateBehind, claimed[1]))
	ids[outbox.StateBehind] = run[1]
	captured := about("x", "captured")
	captured.Topic = ""
	ids[outbox.StateCaptured] = e.add(captured)[0]
	ids[outbox.StateReady] = e.add(about("", "ready"))[0]
	for state, id := range ids {
		e.wantMessage(id, state, "O3: a message that was made to be "+state.String())
	}
	return ids
}

func filteredMessages(e *env) {
	ids := e.oneOfEach()
	for state, id := range ids {
		found := e.listMessages(outbox.Filter{States: []outbox.State{state}})
		if !slices.ContainsFunc(found, func(m outbox.Entry) bool { return m.ID == id }) {
			e.Errorf("O3: Messages in state %s misses one", state)
		}
		for _, m := range found {
			if m.State != state {
				e.Errorf("O3: Messages in state %s returned one that is %s", state, m.State)
			}
		}
	}
	special := fullEntry()
	special.ID = "01900000-0000-7000-8000-000000000001"
	made := time.UnixMilli(0x0190_0000_0000)
	e.committed(func(ctx context.Context) error { return e.box().AddMessage(ctx, e.tx(ctx), &special) })
	all := len(ids) + 2 // and the head in front of the message that is behind
	charged := e.claim(1)[0]
	e.must(e.box().RecordEffect(e.ctx, charged.Lease(), "ch_of_the_receiver", nil))
	for name, c := range map[string]struct {
		f    outbox.Filter
		want int
	}{
		"no restriction":            {outbox.Filter{}, all},
		"an ID":                     {outbox.Filter{ID: special.ID}, 1},
		"an ID that is not there":   {outbox.Filter{ID: uuid()}, 0},
		"an ID that is none":        {outbox.Filter{ID: "no such message"}, 0},
		"an origin":                 {outbox.Filter{Origin: special.Origin}, 1},
		"another scope":             {outbox.Filter{Origin: store.ID{Scope: "other", Key: special.Origin.Key}}, 0},
		"where scope and key meet":  {outbox.Filter{Origin: store.ID{Scope: "acmek", Key: "ey-1"}}, 0},
		"a downstream key":          {outbox.Filter{DownstreamKey: special.DownstreamKey}, 1},
		"a provider's id":           {outbox.Filter{ProviderID: "ch_of_the_receiver"}, 1},
		"another provider's id":     {outbox.Filter{ProviderID: "ch_of_the_receivers"}, 0},
		"a provider's id and an ID": {outbox.Filter{ProviderID: "ch_of_the_receiver", ID: charged.ID}, 1},
		"a topic":                   {outbox.Filter{Topic: special.Topic}, 1},
		"another topic":             {outbox.Filter{Topic: topic}, all - 2}, // without the special and the captured one
		"two states":                {outbox.Filter{States: []outbox.State{outbox.StateDead, outbox.StateHolding}}, 2},
		"all at once": {outbox.Filter{
			ID: special.ID, Origin: special.Origin, DownstreamKey: special.DownstreamKey, Topic: special.Topic,
			States: []outbox.State{outbox.StateReady},
		}, 1},
		"since an hour before":            {outbox.Filter{Origin: special.Origin, Since: made.Add(-time.Hour)}, 1},
		"since an hour after":             {outbox.Filter{Origin: special.Origin, Since: made.Add(time.Hour)}, 0},
		"an ID, and another topic":        {outbox.Filter{ID: special.ID, Topic: topic}, 0},
		"a topic, and a state it has not": {outbox.Filter{Topic: special.Topic, States: []outbox.State{outbox.StateDone}}, 0},
	} {
		if found := e.listMessages(c.f); len(found) != c.want {
			e.Errorf("O3: Messages by %s returned %d, want %d", name, len(found), c.want)
		}
	}
}

// messagesOfAClockSetBack searches for a message whose ID is larger than the IDs of many messages that were added after
// it.
func messagesOfAClockSetBack(e *env) {
	const later = 1001
	made := time.UnixMilli(0x0190_0000_0000)
	ahead := fullEntry()
	ahead.ID = "01900036-ee80-7000-8000-000000000001" // an hour later
	e.committed(func(ctx context.Context) error { return e.box().AddMessage(ctx, e.tx(ctx), &ahead) })
	e.committed(func(ctx context.Context) error {
		for i := range later {
			m := fullEntry()
			m.ID, m.Origin.Key = fmt.Sprintf("01900000-0000-7000-8000-%012x", i), "key-2"
			if err := e.box().AddMessage(ctx, e.tx(ctx), &m); err != nil {
				return err
			}
		}
		return nil
	})
	if found := e.listMessages(outbox.Filter{Origin: ahead.Origin, Since: made.Add(-time.Minute)}); len(found) != 1 {
		e.Errorf("O3: Messages since a moment returned %d of an operation whose clock was ahead, want 1", len(found))
	}
}

// pagedMessages reads messages in pages, the oldest first.
func pagedMessages(e *env) {
	var ids []string
	for i := range 5 {
		ids = append(ids, e.add(about("", fmt.Sprint("message ", i)))...)
		e.pass(e.resolution())
	}
	for _, limit := range []int{1, 2, 5, 9} {
		var got []string
		after := ""
		for range 6 {
			page := e.listMessages(outbox.Filter{Topic: topic, After: after, Limit: limit})
			if len(page) == 0 {
				break
			}
			if len(page) > limit {
				e.Fatalf("O3: a page of at most %d holds %d", limit, len(page))
			}
			for _, m := range page {
				got = append(got, m.ID)
			}
			after = page[len(page)-1].ID
		}
		if !slices.Equal(got, ids) {
			e.Errorf("O3: in pages of %d Messages returned %s, want %s", limit, e.describe(got), e.describe(ids))
		}
	}
	e.add(slices.Repeat([]outbox.Message{about("", "many")}, 100)...)
	if n := len(e.listMessages(outbox.Filter{})); n != 100 {
		e.Errorf("O3: a page without a limit holds %d of 105 messages, want 100", n)
	}
}

// replays makes dead letters of both kinds ready.
func replays(e *env) {
	for _, state := range []outbox.State{outbox.StateDead, outbox.StateHolding} {
		id := e.add(about("x", state.String()))[0]
		end := to(state, e.claimOne(id, "O2"))
		end.Attempts, end.Error = 9, "refused"
		e.finish(end)
		key := e.message(id).DownstreamKey
		from := e.now()
		e.must(e.box().ReplayMessage(e.ctx, id, nil))
		kept := e.wantMessage(id, outbox.StateReady, "O3: a replayed dead letter")
		e.wantMoment("Due of a replayed dead letter", kept.Due, from, 0)
		e.wantAttempts(kept, 0, "O3: a replayed dead letter has all its attempts before it")
		again := e.claimOne(id, "O3: a replayed dead letter")
		if again.DownstreamKey != key {
			e.Errorf("O3: a replayed dead letter has the downstream key %q, want %q as before", again.DownstreamKey, key)
		}
		e.done(again)
	}
}

// drops lets aggregates continue, and leaves other dead letters unchanged.
func drops(e *env) {
	ids := e.oneOfEach()
	for _, state := range []outbox.State{outbox.StateHolding, outbox.StateDead} {
		before := e.message(ids[state])
		for range 2 { // the second drop changes nothing
			e.must(e.box().DropMessage(e.ctx, ids[state]))
			after := e.wantMessage(ids[state], outbox.StateDead, "O3: a dropped dead letter")
			if after.Attempts != before.Attempts || after.LastError != before.LastError {
				e.Errorf("O3: a dropped dead letter has %d attempts and the error %q, want %d and %q as before", after.Attempts,
					after.LastError, before.Attempts, before.LastError)
			}
		}
	}
	undropped := e.listMessages(outbox.Filter{Undropped: true})
	isDead := func(m outbox.Entry) bool { return m.State == outbox.StateDead }
	if n := len(e.listMessages(outbox.Filter{})); len(undropped) != n-2 || slices.ContainsFunc(undropped, isDead) {
		e.Errorf("O3: of %d messages, two of them dropped, %d are not: %+v", n, len(undropped), undropped)
	}
	e.must(e.box().ReplayMessage(e.ctx, ids[outbox.StateHolding], nil)) // it is still a dead letter
}

// notDeadLetters tries to act on messages that are not dead letters.
func notDeadLetters(e *env) {
	ids := e.oneOfEach()
	delete(ids, outbox.StateDead)
	delete(ids, outbox.StateHolding)
	for state, id := range ids {
		before := e.message(id)
		e.wantNotFound(e.box().ReplayMessage(e.ctx, id, nil), "O3: to replay a message that is "+state.String())
		e.wantNotFound(e.box().DropMessage(e.ctx, id), "O3: to drop a message that is "+state.String())
		if diff := diffEntries(e.message(id), before); diff != "" {
			e.Errorf("O3: to replay or drop what is %s changed it: %s", state, diff)
		}
	}
	for _, id := range []string{uuid(), "no such message", ""} {
		e.wantNotFound(e.box().ReplayMessage(e.ctx, id, nil), fmt.Sprintf("O3: to replay %q", id))
		e.wantNotFound(e.box().DropMessage(e.ctx, id), fmt.Sprintf("O3: to drop %q", id))
	}
}

// messageStats counts messages in each state.
func messageStats(e *env) {
	e.wantStats(outbox.Stats{})
	ids := e.oneOfEach()
	// The oldest waiting message is the leased one; the messages before it are done or dead. The head in front of the
	// message that is behind is leased too.
	want := outbox.Stats{Waiting: 4, DeadLetters: 2, Oldest: e.message(ids[outbox.StateLeased]).CreatedAt}
	e.wantStats(want)
	e.must(e.box().ReplayMessage(e.ctx, ids[outbox.StateDead], nil))
	want = outbox.Stats{Waiting: 5, DeadLetters: 1, Oldest: e.message(ids[outbox.StateDead]).CreatedAt}
	e.wantStats(want)
	e.must(e.box().DropMessage(e.ctx, ids[outbox.StateHolding])) // a person has decided
	want.DeadLetters = 0
	e.wantStats(want)
	e.must(e.box().ReplayMessage(e.ctx, ids[outbox.StateHolding], nil))
	want.Waiting++
	e.wantStats(want)
}

func (e *env) wantStats(want outbox.Stats) {
	e.Helper()
	got, err := e.box().MessageStats(e.ctx)
	e.must(err)
	if got.Waiting != want.Waiting || got.DeadLetters != want.DeadLetters ||
		!near(got.Oldest, want.Oldest, e.resolution()) {
		e.Errorf("O3: the stats are %+v, want %+v", got, want)
	}
}
