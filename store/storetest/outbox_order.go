package storetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/onceward/onceward/outbox"
)

// testOutboxOrder checks that messages about one aggregate keep their order, and that other messages can overtake them
// (O2).
func testOutboxOrder(t *testing.T, h Harness) {
	h.test(t, "a run in one claim", func(e *env) {
		ids := e.lane("x", 5)
		e.wantRun(e.claim(3), "O2: the first three of an aggregate", ids[:3]...)
	})
	h.test(t, "a run of one transaction", func(e *env) {
		ids := e.add(about("x", "0"), about("x", "1"), about("x", "2"), about("x", "3"))
		e.wantRun(e.claim(everything), "O2: messages of one transaction are in the order in which they were added", ids...)
	})
	h.test(t, "nothing of an aggregate that is leased", leasedLane)
	h.test(t, "the rest comes after done", restAfterDone)
	h.test(t, "waiting for the next attempt", waitingForRetry)
	h.test(t, "waiting for a delay", waitingForDelay)
	h.test(t, "a run that fails in the middle", runFails)
	h.test(t, "a dead letter that does not hold", func(e *env) {
		ids := e.lane("x", 3)
		first := e.claimOne(ids[0], "O2")
		e.claim(everything) // finds that the rest must wait
		e.finish(to(outbox.StateDead, first))
		e.wantDelivery("O3: behind a dead letter the aggregate goes on", ids[1:]...)
		e.wantMessage(ids[0], outbox.StateDead, "O3: a dead letter stays")
	})
	h.test(t, "a dead letter that holds, replayed", holdingReplayed)
	h.test(t, "a dead letter that holds, dropped", func(e *env) {
		ids := e.holding(3)
		e.must(e.box().DropMessage(e.ctx, ids[0]))
		e.wantDelivery("O3: behind a dropped dead letter the aggregate goes on", ids[1:]...)
	})
	h.test(t, "a dead letter replayed has its old place", replayedInPlace)
	h.test(t, "a poison message and many behind it", poisoned)
	h.test(t, "topics have orders of their own", orderByTopic)
	h.test(t, "names that are almost the same", similarAggregates)
	h.test(t, "without an aggregate", unordered)
}

// wantDelivery delivers all due messages and checks the order.
func (e *env) wantDelivery(rule string, want ...string) {
	e.Helper()
	if got := e.delivered(); !slices.Equal(got, want) {
		e.Errorf("%s: delivered %s, want %s in this order", rule, e.describe(got), e.describe(want))
	}
}

// leasedLane claims while the head of an aggregate is leased.
func leasedLane(e *env) {
	ids := e.lane("x", 3)
	head := e.claimOne(ids[0], "O2: the head of an aggregate")
	others := append(e.lane("y", 2), e.add(about("", "free"))...)
	late := e.lane("x", 1)[0] // added while the head is being delivered
	for range 2 {
		claimed := e.claim(everything)
		e.wantIDs(claimed, "O2: others overtake an aggregate whose head is leased, and nothing of it is claimed", others...)
		e.done(claimed...)
		others = nil
	}
	if tail := e.message(ids[1]); tail.State != outbox.StateReady && tail.State != outbox.StateBehind {
		e.Errorf("O2: a message behind one that is leased is %s, want ready or behind", tail.State)
	}
	e.wantAttempts(e.message(ids[1]), 0, "O3: a message that only waited")
	e.done(head)
	e.wantDelivery("O2: when the head is done", ids[1], ids[2], late)
}

// restAfterDone delivers the messages of an aggregate one by one, each time with a claim in between that finds the rest
// waiting.
func restAfterDone(e *env) {
	for _, id := range e.lane("x", 4) {
		head := e.claimOne(id, "O2: the next of the aggregate, when those before it are done")
		e.wantIDs(e.claim(everything), "O2: the rest while the head is leased")
		e.done(head)
	}
}

// waitingForRetry fails the head, which is retried later.
func waitingForRetry(e *env) {
	ids := e.lane("x", 3)
	head := e.claimOne(ids[0], "O2")
	end := to(outbox.StateReady, head)
	end.After, end.Error = 3*e.brief(), "receiver is down"
	from := e.now()
	e.finish(end)
	kept := e.wantMessage(ids[0], outbox.StateReady, "O3: a message that is tried again")
	e.wantMoment("Due of a message that is tried again after a while", kept.Due, from, end.After)
	if kept.LastError != end.Error {
		e.Errorf("O3: the last error is %q, want %q", kept.LastError, end.Error)
	}
	if e.Advance != nil {
		e.until(kept.Due.Add(-e.resolution()))
		for range 2 {
			e.wantIDs(e.claim(everything), "O2: neither a message before its next attempt, nor those behind it")
		}
	}
	e.until(kept.Due)
	again := e.claimOne(ids[0], "O2: the next attempt, before those behind it")
	e.wantAttempts(again.Entry, 2, "O3: the next attempt")
	e.wantIDs(e.claim(everything), "O2: those behind the next attempt")
	e.done(again)
	e.wantDelivery("O2: when the next attempt succeeded", ids[1:]...)
}

// waitingForDelay uses a message in the middle that is not due yet.
func waitingForDelay(e *env) {
	slow := about("x", "1, delayed")
	slow.Delay = 2 * e.brief()
	ids := e.add(about("x", "0"), slow, about("x", "2"))
	if e.Advance != nil {
		head := e.claim(everything)
		e.wantIDs(head, "O2: a delayed message holds up those behind it, not those before it", ids[0])
		e.done(head...)
		e.wantIDs(e.claim(everything), "O2: a delayed message holds up those behind it")
		ids = ids[1:]
	}
	e.until(e.message(ids[len(ids)-2]).Due)
	e.wantDelivery("O2: when the delay is over", ids...)
}

// runFails makes a worker fail in the middle of a run, and put back the messages that it has not begun.
func runFails(e *env) {
	ids := e.lane("x", 4)
	run := e.claim(everything)
	e.wantRun(run, "O2: a run", ids...)
	failed := to(outbox.StateReady, run[1])
	failed.Attempts, failed.Error, failed.After = 1, "receiver is down", calm
	e.finish(to(outbox.StateDone, run[0]), failed, to(outbox.StateBehind, run[2]), to(outbox.StateBehind, run[3]))
	e.wantMessage(ids[2], outbox.StateBehind, "O2: a message that was not begun waits")
	late := e.lane("x", 1)[0]
	e.wantIDs(e.claim(everything), "O2: those behind one that failed")
	if freed, err := e.box().FreeMessages(e.ctx); err != nil || freed != 0 {
		e.Errorf("O2: FreeMessages freed %d (%v) of an aggregate whose head waits for its next attempt, want 0", freed, err)
	}
	e.wantIDs(e.claim(everything), "O2: those behind one that failed, after FreeMessages")
	if e.Advance != nil {
		e.Advance(calm)
		e.wantDelivery("O2: when the one that failed is due again", ids[1], ids[2], ids[3], late)
	}
}

// holding makes an aggregate of n messages whose first is a dead letter that holds up the others.
func (e *env) holding(n int) []string {
	e.Helper()
	ids := e.lane("x", n)
	end := to(outbox.StateHolding, e.claimOne(ids[0], "O2"))
	end.Attempts, end.Error = 8, "refused"
	e.finish(end)
	held := e.wantMessage(ids[0], outbox.StateHolding, "O3: a dead letter that holds up its aggregate")
	e.wantAttempts(held, 8, "O3: a dead letter")
	for range 2 {
		e.wantIDs(e.claim(everything), "O3: a dead letter that holds, and those behind it")
		lapse(e)
	}
	return ids
}

func holdingReplayed(e *env) {
	ids := e.holding(3)
	e.must(e.box().ReplayMessage(e.ctx, ids[0], nil))
	again := e.claimOne(ids[0], "O3: a dead letter that was replayed")
	e.wantAttempts(again.Entry, 1, "O3: a replayed dead letter has all its attempts before it")
	e.wantIDs(e.claim(everything), "O2: those behind a replayed dead letter that is leased")
	e.done(again)
	e.wantDelivery("O2: when a replayed dead letter is done", ids[1:]...)
}

// replayedInPlace replays a dead letter before the messages behind it have been delivered.
func replayedInPlace(e *env) {
	ids := e.lane("x", 3)
	e.finish(to(outbox.StateDead, e.claimOne(ids[0], "O2")))
	second := e.claimOne(ids[1], "O3: behind a dead letter the aggregate goes on")
	e.must(e.box().ReplayMessage(e.ctx, ids[0], nil))
	e.done(second)
	e.wantDelivery("O2: a message keeps the place that it got when it was added", ids[0], ids[2])
}

// poisoned makes many messages wait behind a failing one, and claims few at a time (scenario 27).
func poisoned(e *env) {
	head := e.lane("x", 1)
	end := to(outbox.StateReady, e.claimOne(head[0], "O2"))
	end.After, end.Error = calm, "receiver is down"
	e.finish(end)
	behind := make([]outbox.Message, 40)
	for i := range behind {
		behind[i] = about("x", fmt.Sprint("behind ", i))
	}
	e.add(behind...)
	e.pass(e.resolution())
	other := e.lane("y", 1)[0]
	e.wantIDs(e.claim(5), "scenario 27: forty messages behind one that failed hold up no other, not even for one claim",
		other)
}

// orderByTopic uses one aggregate under two topics.
func orderByTopic(e *env) {
	first, second := about("x", "charge"), about("x", "mail")
	second.Topic = "mails"
	ids := e.add(first, second)
	head := e.claimOne(ids[0], "O2")
	e.wantIDs(e.claimFor(calm, outbox.ClaimRequest{Topic: "mails", Limit: 9}),
		"O2: the same aggregate under another topic waits for nothing", ids[1])
	next := e.add(second)[0]
	e.done(head)
	e.wantIDs(e.claimFor(calm, outbox.ClaimRequest{Topic: "mails", Limit: 9}, outbox.ClaimRequest{Topic: topic, Limit: 9}),
		"O2: a message behind one of its own topic that is leased")
	e.wantMessage(ids[1], outbox.StateLeased, "O2: a message of another topic")
	if got := e.message(next).State; got != outbox.StateReady && got != outbox.StateBehind {
		e.Errorf("O2: a message that waits is %s", got)
	}
}

// similarAggregates uses aggregates whose names differ only slightly.
func similarAggregates(e *env) {
	var messages []outbox.Message
	for _, name := range [][2]string{
		{"payment", "1"},
		{"Payment", "1"},
		{"order", "1"},
		{"paymen", "t1"},
		{"payment/1", "2"},
		{"payment", "1/2"},
		{"", "payment1"},
		{"payment", "1 "},
		{"payment", "\u00e9"},
		{"payment", "e\u0301"},
	} {
		m := about(name[1], fmt.Sprintf("%q of type %q", name[1], name[0]))
		m.AggregateType = name[0]
		messages = append(messages, m)
	}
	ids := e.add(messages...)
	for _, id := range ids {
		claimed := e.claim(1)
		if len(claimed) != 1 {
			e.Fatalf("O2: %s waits for another aggregate with a similar name", e.describe([]string{id}))
		}
	}
}

// unordered checks that messages without an aggregate's id wait for nothing.
func unordered(e *env) {
	typed := about("", "with a type of aggregate")
	bare := about("", "bare")
	bare.AggregateType = ""
	ids := e.add(typed, bare, typed, bare)
	for range ids {
		if claimed := e.claim(1); len(claimed) != 1 {
			e.Fatal("O2: a message without an aggregate's id waits for another")
		}
	}
	// A failed message does not hold up the others either.
	late := e.add(typed)[0]
	end := to(outbox.StateHolding, e.claimOne(late, "O2"))
	e.finish(end)
	e.claimOne(e.add(typed)[0], "O2: a message without an aggregate's id behind a dead letter")
}
