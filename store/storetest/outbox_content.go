package storetest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// testOutbox checks the life of a message, and that it is delivered as it was added (O1, O3).
func testOutbox(t *testing.T, h Harness) {
	h.test(t, "from added to done", lifeOfMessage)
	h.test(t, "any content", anyMessage)
	h.test(t, "a payload of 1 MiB", func(e *env) {
		e.roundTrip(func(m *outbox.Entry) { m.Payload = bytes.Repeat([]byte{0, 0xff}, outbox.MaxPayload/2) })
	})
	h.test(t, "due after its delay", dueAfterDelay)
	h.test(t, "topics are kept apart", topicsApart)
	h.test(t, "limits", claimLimits)
	h.test(t, "the oldest first", oldestFirst)
	h.test(t, "captured, and claimed by no worker", capturedNotClaimed)
	if restarts(h.probe) {
		h.test(t, "restart", outboxRestarts)
	}
}

// lifeOfMessage follows one message and checks what the store reports of it at each step.
func lifeOfMessage(e *env) {
	from := e.now()
	id := e.add(about("", "created"))[0]
	kept := e.wantMessage(id, outbox.StateReady, "O1: a message that was committed")
	e.wantMoment("CreatedAt of a message", kept.CreatedAt, from, 0)
	e.wantMoment("Due of a message without a delay", kept.Due, from, 0)
	e.wantAttempts(kept, 0, "O3: no worker has attempted it")

	from = e.now()
	claimed := e.claimOne(id, "O1: what was committed is delivered")
	if claimed.State != outbox.StateLeased {
		e.Errorf("O2: a message is claimed as %s, want leased", claimed.State)
	}
	e.wantMoment("Due of a claimed message, the end of its lease", claimed.Due, from, calm)
	e.wantAttempts(claimed.Entry, 1, "O3: a claim is the first attempt")
	if diff := diffEntries(e.message(id), claimed.Entry); diff != "" {
		e.Errorf("O2: Messages shows another entry than the claim: %s", diff)
	}
	e.wantIDs(e.claim(everything), "O2: a message that is leased is not claimed again")

	from = e.now()
	end := to(outbox.StateDone, claimed)
	end.Attempts, end.ProviderID = 4, "ch_1"
	e.finish(end)
	over := e.wantMessage(id, outbox.StateDone, "O3: a message that was delivered")
	e.wantMoment("Due of a done message, when it was done", over.Due, from, 0)
	e.wantAttempts(over, 4, "O3: the worker says how often a delivery was begun")
	if over.ProviderID != "ch_1" || !over.CreatedAt.Equal(kept.CreatedAt) {
		e.Errorf("O3: a done message has the provider's id %q and was created at %s, want ch_1 and %s", over.ProviderID,
			over.CreatedAt, kept.CreatedAt)
	}
	lapse(e)
	e.wantIDs(e.claim(everything), "O3: a message that is done is never claimed again")
}

// wantMoment checks that a time is so long after a moment between from and now.
func (e *env) wantMoment(what string, got, from time.Time, after time.Duration) {
	e.Helper()
	earliest, latest := from.Add(after-e.resolution()), e.now().Add(after+e.resolution())
	if got.Before(earliest) || got.After(latest) {
		e.Errorf("O2: %s is %s, want between %s and %s by the store's clock", what, got, earliest, latest)
	}
}

// anyMessage puts odd but allowed content in each field.
func anyMessage(e *env) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	changes := map[string]func(m *outbox.Entry){
		"nothing but what is required": func(m *outbox.Entry) {
			*m = outbox.Entry{ID: m.ID, Message: outbox.Message{Topic: m.Topic, Type: "t"}}
		},
		"as it is":         func(*outbox.Entry) {},
		"no payload":       func(m *outbox.Entry) { m.Payload = nil },
		"an empty payload": func(m *outbox.Entry) { m.Payload = []byte{} },
		"every byte":       func(m *outbox.Entry) { m.Payload = every },
		"headers": func(m *outbox.Entry) {
			m.Headers = map[string]string{"A-b_1": `"quoted", é 東京`, "a-b_1": "", "x": " y "}
		},
		"many headers": func(m *outbox.Entry) { m.Headers = map[string]string{"long": strings.Repeat("é", 4000)} },
		"no operation": func(m *outbox.Entry) { m.Origin, m.OriginAttempt = store.ID{}, 0 },
		"an odd operation": func(m *outbox.Entry) {
			m.Origin, m.OriginAttempt = store.ID{Scope: "", Key: "k\x00\xff'"}, 1<<62
		},
		"a long delay": func(m *outbox.Entry) { m.Delay = 365 * 24 * time.Hour },
	}
	for name, text := range map[string]string{
		"letters": "Zahlung für Café 東京 🚀", "a quote": `' " \ ; -- %s $1 ?`,
		"long": strings.Repeat("é", outbox.MaxName/2),
	} {
		changes[name] = func(m *outbox.Entry) {
			m.Topic, m.AggregateType, m.AggregateID, m.Type = text, text, text, text
			m.ContentType, m.Source, m.Subject, m.Step = text, text, text, text
		}
	}
	for name, change := range changes {
		e.Run(name, func(t *testing.T) { e.with(t).roundTrip(change) })
	}
}

// roundTrip adds an entry, and checks what is stored and what a worker gets.
func (e *env) roundTrip(change func(*outbox.Entry)) {
	e.Helper()
	want := fullEntry()
	change(&want)
	given := want
	e.committed(func(ctx context.Context) error { return e.box().AddMessage(ctx, e.tx(ctx), &given) })
	kept := e.message(want.ID)
	want.State, want.CreatedAt, want.Due = outbox.StateReady, kept.CreatedAt, kept.CreatedAt.Add(want.Delay)
	if diff := diffEntries(kept, want); diff != "" {
		e.Errorf("O3: a message is kept as it was added, but has %s", diff)
	}
	if kept.Due.Before(want.Due) {
		e.Errorf("O2: a message that was added at %s, to be delayed by %s, is due at %s",
			kept.CreatedAt, want.Delay, kept.Due)
	}
	wanted := outbox.ClaimRequest{Topic: want.Topic, Limit: everything}
	if want.Delay > 0 {
		e.wantIDs(e.claimFor(calm, wanted), "O2: a message is not due before its delay is over")
		return
	}
	claimed := e.claimFor(calm, wanted)
	e.wantIDs(claimed, "O1: what was committed is delivered", want.ID)
	want.State, want.Due, want.Attempts = outbox.StateLeased, claimed[0].Due, 1
	if diff := diffEntries(claimed[0].Entry, want); diff != "" {
		e.Errorf("O3: a message is delivered as it was added, but has %s", diff)
	}
}

// fullEntry returns an entry with a value in each field, and a topic of its own.
func fullEntry() outbox.Entry {
	id := uuid()
	return outbox.Entry{
		Message: outbox.Message{
			Topic: "topic " + id, AggregateType: "payment", AggregateID: "pay_1", Type: "payment.created",
			Payload: []byte(`{"amount":1}`), ContentType: "application/json", Source: "https://shop.example/payments",
			Subject: "pay_1", Headers: map[string]string{"tenant": "acme"}, Step: "charge",
		},
		ID: id, Origin: store.ID{Scope: "acme", Key: "key-1"}, OriginAttempt: 7, DownstreamKey: "down-" + id,
	}
}

// diffEntries returns the fields in which an entry differs from the expected one. The store may leave out Step and
// Delay: the downstream key and the due time of a stored message contain their effect.
func diffEntries(got, want outbox.Entry) string {
	var diffs []string
	differs := func(name string, same bool, g, w any) {
		if !same {
			diffs = append(diffs, fmt.Sprintf("%s %.200v, want %.200v", name, g, w))
		}
	}
	for _, text := range []struct{ name, got, want string }{
		{"ID", got.ID, want.ID},
		{"Topic", got.Topic, want.Topic},
		{"AggregateType", got.AggregateType, want.AggregateType},
		{"AggregateID", got.AggregateID, want.AggregateID},
		{"Type", got.Type, want.Type},
		{"ContentType", got.ContentType, want.ContentType},
		{"Source", got.Source, want.Source},
		{"Subject", got.Subject, want.Subject},
		{"DownstreamKey", got.DownstreamKey, want.DownstreamKey},
		{"ProviderID", got.ProviderID, want.ProviderID},
		{"LastError", got.LastError, want.LastError},
	} {
		differs(text.name, text.got == text.want, text.got, text.want)
	}
	differs("Payload", bytes.Equal(got.Payload, want.Payload), got.Payload, want.Payload)
	differs("Answer", bytes.Equal(got.Answer, want.Answer), got.Answer, want.Answer)
	differs("Headers", maps.Equal(got.Headers, want.Headers), got.Headers, want.Headers)
	differs("Step", got.Step == want.Step || got.Step == "", got.Step, want.Step)
	differs("Delay", got.Delay == want.Delay || got.Delay == 0, got.Delay, want.Delay)
	differs("Origin", got.Origin == want.Origin, got.Origin, want.Origin)
	differs("Attempt", got.OriginAttempt == want.OriginAttempt, got.OriginAttempt, want.OriginAttempt)
	differs("State", got.State == want.State, got.State, want.State)
	differs("Attempts", got.Attempts == want.Attempts, got.Attempts, want.Attempts)
	differs("CreatedAt", got.CreatedAt.Equal(want.CreatedAt), got.CreatedAt, want.CreatedAt)
	differs("Due", near(got.Due, want.Due, time.Millisecond), got.Due, want.Due)
	return strings.Join(diffs, "; ")
}

// dueAfterDelay claims before and after the end of a delay.
func dueAfterDelay(e *env) {
	m := about("", "delayed")
	m.Delay = 3 * e.brief()
	id := e.add(m)[0]
	due := e.message(id).Due
	if e.Advance != nil {
		e.until(due.Add(-e.resolution()))
		e.wantIDs(e.claim(everything), "O2: a message is not due before its delay is over")
	}
	e.until(due)
	e.claimOne(id, "O2: a message is due when its delay is over")
}

// topicsApart claims from several topics at once.
func topicsApart(e *env) {
	of := func(topic, kind string) outbox.Message {
		m := about("", kind)
		m.Topic = topic
		return m
	}
	ids := e.add(of("a", "a0"), of("a", "a1"), of("a", "a2"), of("A", "other case"), of("b", "b0"), of("b", "b1"),
		of("c", "c0"))
	e.wantIDs(e.claimFor(calm), "O2: a claim that wants nothing")
	e.wantIDs(e.claimFor(calm, outbox.ClaimRequest{Topic: "nobody's", Limit: 9}), "O2: a topic without messages")
	got := e.claimFor(calm, outbox.ClaimRequest{Topic: "a", Limit: 2}, outbox.ClaimRequest{Topic: "b", Limit: 9},
		outbox.ClaimRequest{Topic: "c", Limit: 0})
	count := make(map[string]int)
	for _, c := range got {
		count[c.Topic]++
	}
	if !maps.Equal(count, map[string]int{"a": 2, "b": 2}) {
		e.Fatalf("O2: a claim of at most two of a, nine of b and none of c took %v, want two of a and both of b", count)
	}
	e.wantIDs(e.claimFor(calm, outbox.ClaimRequest{Topic: "c", Limit: 1}, outbox.ClaimRequest{Topic: "A", Limit: 1}),
		"O2: the other topics", ids[3], ids[6])
}

// claimLimits claims fewer messages than there are.
func claimLimits(e *env) {
	e.add(about("", "0"), about("", "1"), about("", "2"), about("", "3"), about("", "4"))
	for _, step := range []struct{ limit, want int }{{0, 0}, {2, 2}, {1, 1}, {everything, 2}, {everything, 0}} {
		if got := len(e.claim(step.limit)); got != step.want {
			e.Errorf("O2: a claim of at most %d took %d messages, want %d", step.limit, got, step.want)
		}
	}
}

// oldestFirst claims fewer messages than are due, of several aggregates.
func oldestFirst(e *env) {
	var ids []string
	for i, aggregate := range []string{"", "x", "y", "", "x", "z"} {
		ids = append(ids, e.add(about(aggregate, fmt.Sprint("message ", i)))...)
		e.pass(e.resolution())
	}
	e.wantIDs(e.claim(3), "O2: the oldest three of six", ids[:3]...)
	e.wantIDs(e.claim(1), "O2: the oldest that is neither leased nor behind one that is", ids[3])
}

// capturedNotClaimed adds messages without a topic.
func capturedNotClaimed(e *env) {
	m := about("x", "captured")
	m.Topic = ""
	id := e.add(m)[0]
	next := e.add(about("x", "to deliver"))[0]
	e.wantMessage(id, outbox.StateCaptured, "O4: a message without a topic is for change-data-capture")
	e.wantIDs(e.claimFor(calm, outbox.ClaimRequest{Topic: "", Limit: 9}),
		"O4: a message without a topic is claimed by no worker")
	e.claimOne(next, "O4: a captured message holds up nothing")
	if _, err := e.box().FreeMessages(e.ctx); err != nil {
		e.Error(err)
	}
	e.wantMessage(id, outbox.StateCaptured, "O4: a captured message stays as it is")
}

// outboxRestarts checks that messages, their order, leases and tokens survive a restart.
func outboxRestarts(e *env) {
	ids := e.lane("x", 3)
	free := e.add(about("", "free"))[0]
	first := e.claimFor(calm, outbox.ClaimRequest{Topic: topic, Limit: 1})
	e.wantIDs(first, "O2", ids[0])
	before := e.message(ids[0])
	e.reopen()
	if diff := diffEntries(e.message(ids[0]), before); diff != "" {
		e.Errorf("O1: a restart changed a message: %s", diff)
	}
	second := e.claim(everything)
	e.wantIDs(second, "O2: a lease survives a restart, and holds up its aggregate", free)
	if second[0].Token == first[0].Token {
		e.Errorf("O2: token %d was given out before and after a restart", first[0].Token)
	}
	e.done(first...)
	if got := e.delivered(); strings.Join(got, " ") != strings.Join(ids[1:], " ") {
		e.Errorf("O2: after a restart %s was delivered, want the rest of the aggregate in its order", e.describe(got))
	}
}
