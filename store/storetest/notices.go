package storetest

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward"
)

// witnesses is how many tell the same at the same moment.
const witnesses = 16

// oddTexts are what names and reasons may be: they come from outside, and a store takes them as they are.
func oddTexts() map[string]string {
	long := make([]byte, 20_000)
	_, _ = rand.Read(long) // so that no index makes it shorter
	return map[string]string{
		"nothing": "", "a zero byte": "a\x00b", "only zero bytes": "\x00\x00", "not UTF-8": "\xff\xfe\x80", "a quote": "' \" \\ ; --",
		"letters": "Zahlung für Café 東京", "another case": "A", "long": string(long),
	}
}

// testNotices checks that what other systems tell is kept, each notice once (B3).
func testNotices(t *testing.T, h Harness) {
	h.test(t, "each event once", noticedOnce)
	h.test(t, "in the order in which they happened", noticesInOrder)
	h.test(t, "of several subjects", noticesOfSubjects)
	h.test(t, "each scope for itself", noticesOfScopes)
	h.test(t, "any text", anyNotice)
	h.test(t, "any body", func(e *env) {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		size := 1 << 20
		if h.Features.MaxBody > 0 {
			size = min(size, h.Features.MaxBody)
		}
		for name, body := range map[string][]byte{"none": nil, "empty": {}, "every byte": every, "large": bytes.Repeat([]byte{0, 0xff}, size/2)} {
			n := notice("psp", name, name)
			n.Body = body
			e.notice(n, true)
			e.wantNotices("psp", []string{name}, n)
		}
	})
	h.test(t, "received by the store's clock", receivedByClock)
	h.test(t, "told by many at once", func(e *env) {
		for round := range rounds {
			e.raceNotices(fmt.Sprint("round-", round))
		}
	})
	h.test(t, "purged by age", func(e *env) {
		e.purgedByAge(
			func(i int) { e.notice(notice("psp", fmt.Sprint("evt-", i), "subject"), true) },
			e.noticed().PurgeNotices,
			func() (left []string) {
				for _, n := range e.notices("psp", "subject") {
					left = append(left, n.EventID)
				}
				return left
			})
		e.notice(notice("psp", "evt-0", "subject"), true) // what was purged is as if it had never come
	})
}

// noticeScope is the one that most notices are bound to.
const noticeScope = "acme"

// notice is one about a subject, whose moment is that of no clock here.
func notice(source, event, subject string) onceward.Notice {
	return onceward.Notice{
		Source: source, Scope: noticeScope, EventID: event, Subject: subject, Body: []byte(event),
		At: time.Date(2025, 12, 31, 23, 59, 59, 123_456_000, time.UTC),
	}
}

// noticed returns the store as a keeper of notices.
func (e *env) noticed() onceward.NoticeKeeper { return e.Store.(onceward.NoticeKeeper) }

// notice keeps a notice and checks whether it was new.
func (e *env) notice(n onceward.Notice, want bool) {
	e.Helper()
	added, err := e.noticed().AddNotice(e.ctx, n)
	e.must(err)
	if added != want {
		e.Errorf("B3: event %.40q of %.40q was added: %t, want %t", n.EventID, n.Source, added, want)
	}
}

func (e *env) notices(source string, subjects ...string) []onceward.Notice {
	e.Helper()
	return e.noticesFor(noticeScope, source, subjects...)
}

// noticesFor are those that may settle records of a scope.
func (e *env) noticesFor(scope, source string, subjects ...string) []onceward.Notice {
	e.Helper()
	found, err := e.noticed().Notices(e.ctx, onceward.NoticeFilter{Source: source, Scope: scope, Subjects: subjects})
	e.must(err)
	return found
}

// wantNotices checks what is kept about some subjects, in its order.
func (e *env) wantNotices(source string, subjects []string, want ...onceward.Notice) {
	e.Helper()
	e.wantNoticesFor(noticeScope, source, subjects, want...)
}

func (e *env) wantNoticesFor(scope, source string, subjects []string, want ...onceward.Notice) {
	e.Helper()
	got := e.noticesFor(scope, source, subjects...)
	if len(got) != len(want) {
		e.Fatalf("B3: %d notices of %.40q are kept about %.80q for scope %.40q, want %d", len(got), source, subjects, scope, len(want))
	}
	for i := range want {
		g, w := got[i], want[i]
		if g.Source != w.Source || g.Scope != w.Scope || g.AnyScope != w.AnyScope || g.EventID != w.EventID || g.Subject != w.Subject ||
			!near(g.At, w.At, e.resolution()) || !bytes.Equal(g.Body, w.Body) {
			e.Errorf("B3: notice %d is %s, want %s", i, describeNotice(&g), describeNotice(&w))
		}
	}
}

func describeNotice(n *onceward.Notice) string {
	return fmt.Sprintf("(%.40q, scope %.40q, any %t, %.40q, %.40q, %s, %d bytes)",
		n.Source, n.Scope, n.AnyScope, n.EventID, n.Subject, n.At, len(n.Body))
}

// noticesOfScopes checks that a sender speaks for its own scope alone (B6): it is not heard about the records of others, and does
// not keep an event of theirs from being kept by taking its id first.
func noticesOfScopes(e *env) {
	bound := func(scope string, second int) onceward.Notice {
		n := notice("psp", "evt", "charge")
		n.Scope, n.At, n.Body = scope, n.At.Add(time.Duration(second)*time.Second), []byte("from "+scope)
		return n
	}
	free := func(scope string) onceward.Notice {
		n := bound(scope, 3)
		n.AnyScope, n.Body = true, []byte("from the service's own account")
		return n
	}
	foreign, own, nameless, account := bound("mallory", 0), bound("acme", 1), bound("", 2), free("")
	for _, n := range []onceward.Notice{foreign, own, nameless, account} {
		e.notice(n, true)
		e.notice(n, false)
	}
	e.notice(free("acme"), false) // what counts for all scopes is bound to none
	e.wantNoticesFor("acme", "psp", []string{"charge"}, own, account)
	e.wantNoticesFor("mallory", "psp", []string{"charge"}, foreign, account)
	e.wantNoticesFor("", "psp", []string{"charge"}, nameless, account)
	e.wantNoticesFor("nobody", "psp", []string{"charge"}, account)
	e.wantNoticesFor("acme", "another", []string{"charge"})
	e.wantNoticesFor("acme", "psp", []string{"another"})
	e.wantNoticesFor("acme", "psp", nil)
	// Names that only together are the same, and those in another case, are other scopes.
	for _, scope := range []string{"acm", "acme ", "ACME", "acme\x00"} {
		e.wantNoticesFor(scope, "psp", []string{"charge"}, account)
	}
	alone := free("mallory")
	alone.Source = "own account"
	e.notice(alone, true)
	alone.Scope = ""
	e.wantNoticesFor("acme", "own account", []string{"charge"}, alone)
}

// noticedOnce sends events again, also with another content: the first one stays as it was.
func noticedOnce(e *env) {
	first := notice("psp", "evt", "charge")
	e.notice(first, true)
	kept := e.notices("psp", "charge")[0]
	e.pass(e.resolution())
	again := notice("psp", "evt", "charge")
	again.Body, again.At = []byte("changed"), again.At.Add(time.Hour)
	e.notice(first, false)
	e.notice(again, false)
	again.Subject = "another"
	e.notice(again, false)
	e.wantNotices("psp", []string{"charge", "another"}, first)
	if received := e.notices("psp", "charge")[0].ReceivedAt; !received.Equal(kept.ReceivedAt) {
		e.Errorf("B3: a notice that came again was received at %s, before at %s", received, kept.ReceivedAt)
	}
	// The same id of another source, and names that only together are the same, are other events.
	for _, n := range []onceward.Notice{
		notice("other", "evt", "charge"), notice("ps", "pevt", "charge"), notice("pspe", "vt", "charge"), notice("psp", "evt2", "charge"),
	} {
		e.notice(n, true)
		e.notice(n, false)
	}
	e.wantNotices("other", []string{"charge"}, notice("other", "evt", "charge"))
	e.wantNotices("psp", []string{"charge"}, first, notice("psp", "evt2", "charge"))
}

func noticesInOrder(e *env) {
	at := func(event string, second int) onceward.Notice {
		n := notice("psp", event, "charge")
		n.At = n.At.Add(time.Duration(second) * time.Second)
		return n
	}
	for _, n := range []onceward.Notice{at("d", 3), at("b", 1), at("z", 0), at("c2", 2), at("c1", 2), at("a", 5)} {
		e.notice(n, true)
	}
	e.wantNotices("psp", []string{"charge"}, at("z", 0), at("b", 1), at("c1", 2), at("c2", 2), at("d", 3), at("a", 5))
}

func noticesOfSubjects(e *env) {
	about := func(event, subject string, second int) onceward.Notice {
		n := notice("psp", event, subject)
		n.At = n.At.Add(time.Duration(second) * time.Second)
		return n
	}
	key, provider, late := about("1", "key", 2), about("2", "ch_1", 1), about("3", "key", 3)
	for _, n := range []onceward.Notice{key, provider, late, about("4", "stranger", 0), notice("other", "5", "key"), notice("psp2", "6", "ch_1")} {
		e.notice(n, true)
	}
	e.wantNotices("psp", []string{"key"}, key, late)
	e.wantNotices("psp", []string{"ch_1"}, provider)
	e.wantNotices("psp", []string{"key", "ch_1"}, provider, key, late)
	e.wantNotices("psp", []string{"ch_1", "key", "ch_1", "nobody", ""}, provider, key, late)
	e.wantNotices("psp", []string{"nobody"})
	e.wantNotices("psp", nil)
	e.wantNotices("nobody", []string{"key", "ch_1"})
}

// anyNotice puts each odd text in each place, beside what differs from it by little.
func anyNotice(e *env) {
	for name, text := range oddTexts() {
		scoped := notice("by scope", name, name)
		scoped.Scope = text
		for place, n := range map[string]onceward.Notice{
			"source": notice(text, name, name), "event id": notice("by event", text, name), "subject": notice("by subject", name, text),
			"scope": scoped,
		} {
			e.notice(n, true)
			e.notice(n, false)
			e.wantNoticesFor(n.Scope, n.Source, []string{n.Subject}, n)
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
			e.notice(other, true)
			e.wantNoticesFor(n.Scope, n.Source, []string{n.Subject}, n)
		}
	}
}

func receivedByClock(e *env) {
	n := notice("psp", "evt", "charge")
	n.ReceivedAt = n.At // which is the store's to say
	from := e.now()
	e.notice(n, true)
	to := e.now()
	if received := e.notices("psp", "charge")[0].ReceivedAt; received.Before(from.Add(-e.resolution())) || received.After(to) {
		e.Errorf("B3: a notice that came between %s and %s was received at %s", from, to, received)
	}
	timeless := onceward.Notice{Source: "psp", Scope: noticeScope, EventID: "timeless", Subject: "timeless"}
	e.notice(timeless, true)
	e.wantNotices("psp", []string{"timeless"}, timeless)
}

// raceNotices lets many tell of the same event: one of them is the first, and what that one said is kept.
func (e *env) raceNotices(event string) {
	e.Helper()
	added := make([]bool, witnesses)
	errs := make([]error, witnesses)
	together(witnesses, func(i int) {
		n := notice("psp", event, event)
		n.Body = []byte{byte(i)}
		added[i], errs[i] = e.noticed().AddNotice(e.ctx, n)
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
		e.Fatal("B3: an event was added by nobody")
	}
	want := notice("psp", event, event)
	want.Body = []byte{byte(first)}
	e.wantNotices("psp", []string{event}, want)
}
