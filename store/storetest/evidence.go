package storetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// witnesses is how many callers report the same event at the same moment.
const witnesses = 16

// oddTexts are possible names and reasons: they come from outside, and a store accepts all of them unchanged.
func oddTexts() map[string]string {
	long := make([]byte, 20_000)
	_, _ = rand.Read(long) // so that no index can compress it
	return map[string]string{
		"nothing": "", "a zero byte": "a\x00b", "only zero bytes": "\x00\x00", "not UTF-8": "\xff\xfe\x80",
		"a quote": "' \" \\ ; --",
		"letters": "Zahlung für Café 東京", "another case": "A", "long": string(long),
	}
}

// testExternalEvents checks that the reports of other systems are kept, each external event once (B3).
func testExternalEvents(t *testing.T, h Harness) {
	h.test(t, "each event once", externalEventOnce)
	h.test(t, "in the order in which they happened", externalEventsInOrder)
	h.test(t, "of several subjects", externalEventsOfSubjects)
	h.test(t, "each scope for itself", externalEventsOfScopes)
	h.test(t, "any text", anyExternalEvent)
	h.test(t, "any time", externalEventsOfAnyTime)
	h.test(t, "any body", func(e *env) {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		size := 1 << 20
		if h.Features.MaxBody > 0 {
			size = min(size, h.Features.MaxBody)
		}
		for name, body := range map[string][]byte{
			"none": nil, "empty": {}, "every byte": every,
			"large": bytes.Repeat([]byte{0, 0xff}, size/2),
		} {
			n := externalEvent("psp", name, name)
			n.Body = body
			e.addExternal(n, true)
			e.wantExternalEvents("psp", []string{name}, n)
		}
	})
	h.test(t, "received by the store's clock", receivedByClock)
	h.test(t, "told by many at once", func(e *env) {
		for round := range rounds {
			e.raceExternalEvents(fmt.Sprint("round-", round))
		}
	})
	h.test(t, "purged by age", func(e *env) {
		e.purgedByAge(
			func(i int) { e.addExternal(externalEvent("psp", fmt.Sprint("evt-", i), "subject"), true) },
			e.externalEventKeeper().PurgeExternalEvents,
			func() (left []string) {
				for _, n := range e.externals("psp", "subject") {
					left = append(left, n.EventID)
				}
				return left
			})
		e.addExternal(externalEvent("psp", "evt-0", "subject"), true) // a purged event is as if it had never arrived
	})
}

// externalEventScope is the scope to which most external events are bound.
const externalEventScope = "acme"

// externalEvent returns an event about a subject. Its time is the time of no clock here.
func externalEvent(source, event, subject string) store.ExternalEvent {
	return store.ExternalEvent{
		Source: source, Scope: externalEventScope, EventID: event, Subject: subject, Body: []byte(event),
		At: time.Date(2025, 12, 31, 23, 59, 59, 123_456_000, time.UTC),
	}
}

// externalEventKeeper returns the store as a [store.ExternalEventKeeper].
func (e *env) externalEventKeeper() store.ExternalEventKeeper {
	return e.Store.(store.ExternalEventKeeper)
}

// addExternal adds an external event and checks whether it was new.
func (e *env) addExternal(n store.ExternalEvent, want bool) {
	e.Helper()
	added, err := e.externalEventKeeper().AddExternalEvent(e.ctx, n)
	e.must(err)
	if added != want {
		e.Errorf("B3: event %.40q of %.40q was added: %t, want %t", n.EventID, n.Source, added, want)
	}
}

func (e *env) externals(source string, subjects ...string) []store.ExternalEvent {
	e.Helper()
	return e.externalEventsFor(externalEventScope, source, subjects...)
}

// externalEventsFor returns the events that may settle records of a scope.
func (e *env) externalEventsFor(scope, source string, subjects ...string) []store.ExternalEvent {
	e.Helper()
	found, err := e.externalEventKeeper().ExternalEvents(e.ctx,
		store.ExternalEventFilter{Source: source, Scope: scope, Subjects: subjects})
	e.must(err)
	return found
}

// wantExternalEvents checks which events are kept about some subjects, and their order.
func (e *env) wantExternalEvents(source string, subjects []string, want ...store.ExternalEvent) {
	e.Helper()
	e.wantExternalEventsFor(externalEventScope, source, subjects, want...)
}

func (e *env) wantExternalEventsFor(scope, source string, subjects []string, want ...store.ExternalEvent) {
	e.Helper()
	got := e.externalEventsFor(scope, source, subjects...)
	if len(got) != len(want) {
		e.Fatalf("B3: %d external events of %.40q are kept about %.80q for scope %.40q, want %d", len(got), source,
			subjects, scope, len(want))
	}
	for i := range want {
		g, w := got[i], want[i]
		if g.Source != w.Source || g.Scope != w.Scope || g.AnyScope != w.AnyScope || g.EventID != w.EventID ||
			g.Subject != w.Subject ||
			!near(g.At, w.At, e.resolution()) || !bytes.Equal(g.Body, w.Body) {
			e.Errorf("B3: external event %d is %s, want %s", i, describeExternalEvent(&g), describeExternalEvent(&w))
		}
	}
}

func describeExternalEvent(n *store.ExternalEvent) string {
	return fmt.Sprintf("(%.40q, scope %.40q, any %t, %.40q, %.40q, %s, %d bytes)",
		n.Source, n.Scope, n.AnyScope, n.EventID, n.Subject, n.At, len(n.Body))
}

// externalEventsOfScopes checks that the events of a sender have effect in its own scope only (B6): they do not settle
// the records of other scopes, and an event that uses an id first does not block an event of another scope.
func externalEventsOfScopes(e *env) {
	bound := func(scope string, second int) store.ExternalEvent {
		n := externalEvent("psp", "evt", "charge")
		n.Scope, n.At, n.Body = scope, n.At.Add(time.Duration(second)*time.Second), []byte("from "+scope)
		return n
	}
	free := func(scope string) store.ExternalEvent {
		n := bound(scope, 3)
		n.AnyScope, n.Body = true, []byte("from the service's own account")
		return n
	}
	foreign, own, nameless, account := bound("mallory", 0), bound("acme", 1), bound("", 2), free("")
	for _, n := range []store.ExternalEvent{foreign, own, nameless, account} {
		e.addExternal(n, true)
		e.addExternal(n, false)
	}
	e.addExternal(free("acme"), false) // an event that counts for all scopes is bound to none
	e.wantExternalEventsFor("acme", "psp", []string{"charge"}, own, account)
	e.wantExternalEventsFor("mallory", "psp", []string{"charge"}, foreign, account)
	e.wantExternalEventsFor("", "psp", []string{"charge"}, nameless, account)
	e.wantExternalEventsFor("nobody", "psp", []string{"charge"}, account)
	e.wantExternalEventsFor("acme", "another", []string{"charge"})
	e.wantExternalEventsFor("acme", "psp", []string{"another"})
	e.wantExternalEventsFor("acme", "psp", nil)
	// Names that are equal only when joined, and names in another case, are other scopes.
	for _, scope := range []string{"acm", "acme ", "ACME", "acme\x00"} {
		e.wantExternalEventsFor(scope, "psp", []string{"charge"}, account)
	}
	alone := free("mallory")
	alone.Source = "own account"
	e.addExternal(alone, true)
	alone.Scope = ""
	e.wantExternalEventsFor("acme", "own account", []string{"charge"}, alone)
}

// externalEventOnce sends events again, also with other content: the first one stays unchanged.
func externalEventOnce(e *env) {
	first := externalEvent("psp", "evt", "charge")
	e.addExternal(first, true)
	kept := e.externals("psp", "charge")[0]
	e.pass(e.resolution())
	again := externalEvent("psp", "evt", "charge")
	again.Body, again.At = []byte("changed"), again.At.Add(time.Hour)
	e.addExternal(first, false)
	e.addExternal(again, false)
	again.Subject = "another"
	e.addExternal(again, false)
	e.wantExternalEvents("psp", []string{"charge", "another"}, first)
	if received := e.externals("psp", "charge")[0].ReceivedAt; !received.Equal(kept.ReceivedAt) {
		e.Errorf("B3: an external event that came again was received at %s, before at %s", received, kept.ReceivedAt)
	}
	// The same id from another source, and names that are equal only when joined, are other events.
	for _, n := range []store.ExternalEvent{
		externalEvent("other", "evt", "charge"), externalEvent("ps", "pevt", "charge"), externalEvent("pspe", "vt",
			"charge"), externalEvent("psp", "evt2", "charge"),
	} {
		e.addExternal(n, true)
		e.addExternal(n, false)
	}
	e.wantExternalEvents("other", []string{"charge"}, externalEvent("other", "evt", "charge"))
	e.wantExternalEvents("psp", []string{"charge"}, first, externalEvent("psp", "evt2", "charge"))
}

func externalEventsInOrder(e *env) {
	at := func(event string, second int) store.ExternalEvent {
		n := externalEvent("psp", event, "charge")
		n.At = n.At.Add(time.Duration(second) * time.Second)
		return n
	}
	for _, n := range []store.ExternalEvent{at("d", 3), at("b", 1), at("z", 0), at("c2", 2), at("c1", 2), at("a", 5)} {
		e.addExternal(n, true)
	}
	e.wantExternalEvents("psp", []string{"charge"}, at("z", 0), at("b", 1), at("c1", 2), at("c2", 2), at("d", 3),
		at("a", 5))
}

// externalEventsOfAnyTime keeps events whose senders report odd times, such as the epoch for a missing time. Stores may
// read such a time as the zero time; the event is there anyway.
func externalEventsOfAnyTime(e *env) {
	epoch := time.Unix(0, 0)
	for name, at := range map[string]time.Time{
		"none": {}, "epoch": epoch, "before the epoch": epoch.Add(-1), "behind the epoch": epoch.Add(1),
		"a microsecond before": epoch.Add(-time.Microsecond), "a microsecond behind": epoch.Add(time.Microsecond),
		"nanoseconds": time.Date(2026, 1, 2, 3, 4, 5, 123_456_789, time.FixedZone("", 3600)),
		"long ago":    time.Date(1969, 7, 20, 20, 17, 40, 999_999_999, time.UTC),
	} {
		n := externalEvent("psp", name, name)
		n.At = at
		e.addExternal(n, true)
		if got := e.externals("psp", name); len(got) != 1 || string(got[0].Body) != name {
			e.Errorf("B3: the event of %s (%s) comes back as %v", at, name, got)
		}
	}
}

func externalEventsOfSubjects(e *env) {
	about := func(event, subject string, second int) store.ExternalEvent {
		n := externalEvent("psp", event, subject)
		n.At = n.At.Add(time.Duration(second) * time.Second)
		return n
	}
	key, provider, late := about("1", "key", 2), about("2", "ch_1", 1), about("3", "key", 3)
	for _, n := range []store.ExternalEvent{
		key, provider, late, about("4", "stranger", 0),
		externalEvent("other", "5", "key"), externalEvent("psp2", "6", "ch_1"),
	} {
		e.addExternal(n, true)
	}
	e.wantExternalEvents("psp", []string{"key"}, key, late)
	e.wantExternalEvents("psp", []string{"ch_1"}, provider)
	e.wantExternalEvents("psp", []string{"key", "ch_1"}, provider, key, late)
	e.wantExternalEvents("psp", []string{"ch_1", "key", "ch_1", "nobody", ""}, provider, key, late)
	e.wantExternalEvents("psp", []string{"nobody"})
	e.wantExternalEvents("psp", nil)
	e.wantExternalEvents("nobody", []string{"key", "ch_1"})
}

// anyExternalEvent puts each odd text in each field, beside texts that differ from it only slightly.
func anyExternalEvent(e *env) {
	for name, text := range oddTexts() {
		scoped := externalEvent("by scope", name, name)
		scoped.Scope = text
		for place, n := range map[string]store.ExternalEvent{
			"source": externalEvent(text, name, name), "event id": externalEvent("by event", text,
				name), "subject": externalEvent("by subject", name, text),
			"scope": scoped,
		} {
			e.addExternal(n, true)
			e.addExternal(n, false)
			e.wantExternalEventsFor(n.Scope, n.Source, []string{n.Subject}, n)
			other := n
			switch place {
			case "source":
				other.Source += "\x00"
			case "scope":
				other.Scope += "\x00"
			case "event id":
				other.EventID += "\x00"
				other.Subject += ", another event"
			case "subject":
				other.EventID, other.Subject = other.EventID+", another subject", other.Subject+"\x00!"
			}
			e.addExternal(other, true)
			e.wantExternalEventsFor(n.Scope, n.Source, []string{n.Subject}, n)
		}
	}
}

func receivedByClock(e *env) {
	n := externalEvent("psp", "evt", "charge")
	n.ReceivedAt = n.At // the store sets this time
	from := e.now()
	e.addExternal(n, true)
	to := e.now()
	if received := e.externals("psp", "charge")[0].ReceivedAt; received.Before(from.Add(-e.resolution())) ||
		received.After(to) {
		e.Errorf("B3: an external event that came between %s and %s was received at %s", from, to, received)
	}
	timeless := store.ExternalEvent{Source: "psp", Scope: externalEventScope, EventID: "timeless", Subject: "timeless"}
	e.addExternal(timeless, true)
	e.wantExternalEvents("psp", []string{"timeless"}, timeless)
}

// raceExternalEvents makes many callers report the same event: one report is the first, and its content is kept.
func (e *env) raceExternalEvents(event string) {
	e.Helper()
	added := make([]bool, witnesses)
	errs := make([]error, witnesses)
	together(witnesses, func(i int) {
		n := externalEvent("psp", event, event)
		n.Body = []byte{byte(i)}
		added[i], errs[i] = e.externalEventKeeper().AddExternalEvent(e.ctx, n)
	})
	e.must(errors.Join(errs...))
	first := -1
	for i, was := range added {
		if was && first >= 0 {
			e.Fatalf("B3: one event was added by both %d and %d", first, i)
		}
		if was {
			first = i
		}
	}
	if first < 0 {
		e.Fatal("B3: an event was added by no caller")
	}
	want := externalEvent("psp", event, event)
	want.Body = []byte{byte(first)}
	e.wantExternalEvents("psp", []string{event}, want)
}

// testAudit checks the audit of records: it only grows, and outlives its records (L7).
func testAudit(t *testing.T, h Harness) {
	h.test(t, "kept in order", func(e *env) {
		var want []store.AuditEntry
		for i := range 5 {
			before := entry(id("key"), int64(i+1))
			after := before
			after.Outcome = fmt.Sprint("done ", i)
			want = append(want, before, after)
			e.audit(before)
			e.audit(after)
		}
		e.wantAudit(id("key"), want...)
	})
	h.test(t, "written at the store's moment", func(e *env) {
		one := entry(id("key"), 1)
		one.At = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC) // the store sets the time
		from := e.now()
		e.audit(one)
		to := e.now()
		if at := e.audited(id("key"))[0].At; at.Before(from.Add(-e.resolution())) || at.After(to) {
			e.Errorf("L7: an entry that was written between %s and %s is from %s", from, to, at)
		}
	})
	h.test(t, "each ID its own", func(e *env) {
		for i, target := range []store.ID{{Scope: "a", Key: "bc"}, {Scope: "ab", Key: "c"}, {Scope: "a", Key: "BC"}} {
			one := entry(target, int64(i+1))
			e.audit(one)
			e.wantAudit(target, one)
		}
		e.wantAudit(id("nobody"))
	})
	h.test(t, "any text", func(e *env) {
		for name, text := range oddTexts() {
			one := store.AuditEntry{ID: id(name), Attempt: -1, Actor: text, Action: text, Reason: text, Outcome: text}
			e.audit(one)
			e.wantAudit(id(name), one)
		}
	})
	h.test(t, "written by many at once", func(e *env) {
		errs := make([]error, witnesses)
		together(witnesses, func(i int) { errs[i] = e.auditor().AddAudit(e.ctx, entry(id("key"), int64(i))) })
		e.must(errors.Join(errs...))
		var attempts []int64
		for _, one := range e.audited(id("key")) {
			attempts = append(attempts, one.Attempt)
		}
		slices.Sort(attempts)
		if len(slices.Compact(attempts)) != witnesses {
			e.Errorf("L7: of %d entries that were written at once %v are there", witnesses, attempts)
		}
	})
	h.test(t, "outlives the record", auditOutlives)
	h.test(t, "purged by age", func(e *env) {
		e.purgedByAge(
			func(i int) { e.audit(entry(id("key"), int64(i))) },
			e.auditor().PurgeAudit,
			func() (left []string) {
				for _, one := range e.audited(id("key")) {
					left = append(left, fmt.Sprint("evt-", one.Attempt))
				}
				return left
			})
	})
}

// entry returns an audit entry for one act on a record.
func entry(id store.ID, attempt int64) store.AuditEntry {
	return store.AuditEntry{
		ID: id, Attempt: attempt, Actor: "ops@example.com", Action: "resolve completed", Reason: fmt.Sprint("ticket ",
			attempt),
	}
}

// auditor returns the store as a [store.Auditor].
func (e *env) auditor() store.Auditor { return e.Store.(store.Auditor) }

func (e *env) audit(one store.AuditEntry) {
	e.Helper()
	e.must(e.auditor().AddAudit(e.ctx, one))
}

func (e *env) audited(id store.ID) []store.AuditEntry {
	e.Helper()
	found, err := e.auditor().Audit(e.ctx, id)
	e.must(err)
	return found
}

// wantAudit checks the acts on a record, and their order. The store sets their times.
func (e *env) wantAudit(id store.ID, want ...store.AuditEntry) {
	e.Helper()
	got := e.audited(id)
	if len(got) != len(want) {
		e.Fatalf("L7: %d entries are kept about %q, want %d", len(got), id.Key, len(want))
	}
	for i := range want {
		if got[i].At.IsZero() || i > 0 && e.Advance != nil && got[i].At.Before(got[i-1].At) {
			e.Errorf("L7: entry %d is from %s", i, got[i].At)
		}
		want[i].At = got[i].At
		if got[i] != want[i] {
			e.Errorf("L7: entry %d is %.200v, want %.200v", i, got[i], want[i])
		}
	}
}

// auditOutlives removes records in each possible way.
func auditOutlives(e *env) {
	if has[store.Buster](e.Instance) {
		settled, open := e.own(id("settled")), e.own(id("open"))
		e.complete(settled, "stored")
		for _, c := range []store.Claim{settled, open} {
			e.audit(entry(c.ID, c.Attempt))
			e.bust(c.ID, true)
			e.wantAudit(c.ID, entry(c.ID, c.Attempt))
		}
	}
	if has[store.Reaper](e.Instance) {
		c := e.own(id("expired"), retain(e.brief()))
		e.complete(c, "stored")
		e.audit(entry(c.ID, c.Attempt))
		lapse(e)
		e.reap(everything, false)
		e.wantState(c.ID, store.StateNone, "B2: a record that was reaped")
		e.wantAudit(c.ID, entry(c.ID, c.Attempt))
	}
}

// purgedByAge adds five pieces of evidence, called evt-0 to evt-4, and removes them by their age.
func (e *env) purgedByAge(add func(i int), purge func(ctx context.Context, age time.Duration, limit int) (int, error),
	left func() []string,
) {
	e.Helper()
	work := func(age time.Duration, limit, want int, rest ...string) {
		e.Helper()
		purged, err := purge(e.ctx, age, limit)
		e.must(err)
		if now := left(); purged != want || !slices.Equal(now, rest) {
			e.Errorf("L7: purging what is older than %s, at most %d, removed %d and left %v, want %d and %v", age,
				limit, purged, now, want, rest)
		}
	}
	names := []string{"evt-0", "evt-1", "evt-2", "evt-3", "evt-4"}
	started := e.now()
	for i := range names {
		if i > 0 {
			e.pass(e.brief() / 10)
		}
		add(i)
	}
	work(24*time.Hour, everything, 0, names...)
	e.pass(e.resolution())
	work(0, 0, 0, names...)
	work(0, -1, 0, names...)
	work(0, 2, 2, names[2:]...)
	if e.Advance != nil {
		third := e.now().Sub(started.Add(2 * (e.brief() / 10)))
		work(third, everything, 0, names[2:]...)
		work(third-e.resolution(), everything, 1, names[3:]...)
	}
	work(0, everything, len(left()))
	work(0, everything, 0)
}

// testLateCompletions checks that late completions are kept as evidence (S6).
func testLateCompletions(t *testing.T, h Harness) {
	h.test(t, "kept in order", func(e *env) {
		var want []store.LateCompletion
		for attempt := range int64(5) {
			f := store.LateCompletion{
				Claim:    store.Claim{ID: id("key"), Attempt: attempt + 1},
				Response: rich().Response,
				At:       e.now().Add(time.Duration(attempt) * time.Second),
			}
			f.Response.Status += int(attempt)
			want = append(want, f)
			e.must(e.Store.(store.LateCompletionKeeper).AddLateCompletion(e.ctx, f))
		}
		e.wantLateCompletions(id("key"), want...)
	})
	h.test(t, "each ID its own", func(e *env) {
		for _, target := range []store.ID{{Scope: "a", Key: "bc"}, {Scope: "ab", Key: "c"}, {Scope: "a", Key: "BC"}} {
			f := store.LateCompletion{
				Claim:    store.Claim{ID: target, Attempt: 1},
				Response: answer(target.Scope).Response, At: e.now(),
			}
			e.must(e.Store.(store.LateCompletionKeeper).AddLateCompletion(e.ctx, f))
			e.wantLateCompletions(target, f)
		}
		e.wantLateCompletions(id("nobody"))
	})
	h.test(t, "of a late owner", func(e *env) {
		old := e.own(id("key"), resume, lease(e.brief()))
		lapse(e)
		e.complete(e.own(id("key"), resume), "the new owner's")
		_, err := e.Store.Complete(e.ctx, old, answer("late"))
		e.wantFenced(err, "S6: a replaced owner")
		f := store.LateCompletion{Claim: old, Response: answer("late").Response, At: e.now()}
		e.must(e.Store.(store.LateCompletionKeeper).AddLateCompletion(e.ctx, f))
		e.wantLateCompletions(old.ID, f)
		v := e.wantDecision(request(old.ID), store.DecisionReplay, "S6: a late completion changes no answer")
		if string(v.Record.Response.Body) != "the new owner's" {
			e.Errorf("S6: a late completion changed the stored answer to %q", v.Record.Response.Body)
		}
	})
}

// wantLateCompletions checks which late completions are kept for an ID.
func (e *env) wantLateCompletions(id store.ID, want ...store.LateCompletion) {
	e.Helper()
	got, err := e.Store.(store.LateCompletionKeeper).LateCompletions(e.ctx, id)
	e.must(err)
	if len(got) != len(want) {
		e.Fatalf("S6: %d late completions are kept for %q, want %d", len(got), id.Key, len(want))
	}
	for i := range want {
		if got[i].Claim != want[i].Claim || !near(got[i].At, want[i].At, e.resolution()) ||
			!got[i].Response.Equal(&want[i].Response) {
			e.Errorf("S6: late completion %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}
