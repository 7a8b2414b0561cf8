package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
)

// events returns the store as an [inbox.Store].
func (e *env) events() inbox.Store { return e.Store.(inbox.Store) }

// remembering returns work that records an event, and reports in first whether it was the first time.
func (e *env) remembering(consumer, event string, first *bool) func(ctx context.Context) error {
	return func(ctx context.Context) (err error) {
		*first, err = e.events().RememberEvent(ctx, e.tx(ctx), consumer, event)
		return err
	}
}

// remember records an event in a transaction of its own.
func (e *env) remember(consumer, event string, want bool, rule string) {
	e.Helper()
	var first bool
	e.committed(e.remembering(consumer, event, &first))
	if first != want {
		e.Errorf("%s: event %.40q of consumer %.40q is the first: %t, want %t", rule, event, consumer, first, want)
	}
}

// wantConsumers checks which consumers have had an event.
func (e *env) wantConsumers(event, rule string, want ...string) {
	e.Helper()
	found, err := e.events().ConsumedEvents(e.ctx, event)
	e.must(err)
	var got []string
	for _, c := range found {
		got = append(got, c.Consumer)
		if c.EventID != event {
			e.Errorf("%s: asked for event %.40q, got %.40q", rule, event, c.EventID)
		}
	}
	if !slices.Equal(got, want) {
		e.Errorf("%s: event %.40q was had by %.200q, want %.200q", rule, event, got, want)
	}
}

// testInbox checks that an event is remembered, once for each consumer (O5).
func testInbox(t *testing.T, h Harness) {
	h.test(t, "the first time and no other", func(e *env) {
		e.remember("mailer", "evt", true, "O5: the first time")
		for range 3 {
			e.remember("mailer", "evt", false, "O5: again")
		}
		e.remember("mailer", "evt2", true, "O5: another event")
	})
	h.test(t, "twice in one transaction", func(e *env) {
		var first, second bool
		e.committed(func(ctx context.Context) error {
			return errors.Join(e.remembering("mailer", "evt", &first)(ctx), e.remembering("mailer", "evt", &second)(ctx))
		})
		if !first || second {
			e.Errorf("O5: twice in one transaction an event was the first (%t, %t), want (true, false)", first, second)
		}
	})
	h.test(t, "each consumer for itself", func(e *env) {
		for _, consumer := range []string{"mailer", "ledger", "audit"} {
			e.remember(consumer, "evt", true, "O5: another consumer")
			e.remember(consumer, "evt", false, "O5: again")
		}
		e.wantConsumers("evt", "O5: in the order of their names", "audit", "ledger", "mailer")
		e.wantConsumers("other", "O5: an event that no consumer had")
	})
	h.test(t, "names that are almost the same", similarEvents)
	h.test(t, "by the store's clock", func(e *env) {
		from := e.now()
		e.remember("mailer", "evt", true, "O5")
		found, err := e.events().ConsumedEvents(e.ctx, "evt")
		e.must(err)
		if len(found) != 1 {
			e.Fatalf("O5: %d consumers had the event, want one", len(found))
		}
		e.wantMoment("At of an event", found[0].At, from, 0)
	})
	h.test(t, "purged by age", purgedEvents)
	h.test(t, "no transaction", func(e *env) {
		if _, err := e.events().RememberEvent(e.ctx, nil, "mailer", "evt"); err == nil {
			e.Error("O5: RememberEvent took nil for a transaction")
		}
		e.wantConsumers("evt", "O5: noted without a transaction")
	})
	if restarts(h.probe) {
		h.test(t, "restart", func(e *env) {
			e.remember("mailer", "evt", true, "O5")
			e.reopen()
			e.remember("mailer", "evt", false, "O5: after a restart")
		})
	}
}

// similarEvents records events whose names differ only slightly.
func similarEvents(e *env) {
	long := strings.Repeat("é", inbox.MaxName/2)
	for _, name := range [][2]string{
		{"mailer", "evt"},
		{"Mailer", "evt"},
		{"mailer", "EVT"},
		{"mailere", "vt"},
		{"maile", "revt"},
		{"mailer", "evt "},
		{"mailer", " evt"},
		{"mailer", "\u00e9"},
		{"mailer", "e\u0301"},
		{"für 東京", `' " \ ; --`},
		{`' " \ ; --`, "für 東京"},
		{long, long},
		{long, long + "x"},
		{long + "x", long},
		{"mailer", "01"},
		{"mailer", "1"},
	} {
		e.remember(name[0], name[1], true, "O5: a name of its own")
		e.remember(name[0], name[1], false, "O5: again")
	}
	e.wantConsumers("für 東京", "O5: odd names", `' " \ ; --`)
}

// purgedEvents removes events by their age: a removed event is as if it had never arrived.
func purgedEvents(e *env) {
	e.purgedByAge(
		func(i int) { e.remember("mailer", fmt.Sprint("evt-", i), true, "O5") },
		e.events().PurgeEvents,
		func() (left []string) {
			for i := range 5 {
				name := fmt.Sprint("evt-", i)
				found, err := e.events().ConsumedEvents(e.ctx, name)
				e.must(err)
				if len(found) > 0 {
					left = append(left, name)
				}
			}
			return left
		})
	e.remember("mailer", "evt-0", true, "O5: an event that was forgotten")
	if purged, err := inbox.New(e.events()).Purge(e.ctx, time.Hour); err != nil || purged != 0 {
		e.Errorf("O5: to forget what is older than an hour removed %d (%v)", purged, err)
	}
}
