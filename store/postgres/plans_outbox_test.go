package postgres_test

import (
	"context"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

var (
	onBoxes    = regexp.MustCompile(`(?:on|using) "?onceward_(?:outbox|delivery|inbox)`)
	walksBoxes = regexp.MustCompile(`Seq Scan on onceward_(?:outbox|delivery|inbox)`)
	// An operator asks for a message by its ID. Those that were not promoted are looked at last, one by one.
	asksForOne = regexp.MustCompile(`onceward_message"? AS m WHERE id = `)
)

// TestPlansOfTheOutbox: no statement of a worker, and none that adds or remembers, reads all of a table, neither while
// there are few messages nor when many are done, wait or are dead.
func TestPlansOfTheOutbox(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it fills a table; TestPlansOfASmallTable looks at the statements on records")
	p := newPlanned(t)
	p.checkBoxes("on an empty table")
	exec(t, p.admin, `INSERT INTO onceward_delivery (id, number, lane, due, created_at, origin_attempt, state, topic, aggregatetype, aggregateid, type, downstream_key, attributes, payload)
		SELECT gen_random_uuid(), nextval('onceward_outbox_number'), i % 500 + 1, onceward_now() - i, onceward_now(), 0,
			(ARRAY[4, 4, 4, 4, 4, 4, 4, 2, 5, 5])[i % 10 + 1], 'planned', 'a', (i % 500)::text, 't', 'd', '{}', ''
		FROM generate_series(1, 20000) AS i`)
	exec(t, p.admin, `INSERT INTO onceward_outbox (number, id, lane, due, created_at, origin_attempt, topic, aggregatetype, aggregateid, type, downstream_key, attributes, payload)
		SELECT -nextval('onceward_outbox_number'), gen_random_uuid(), 0, onceward_now(), onceward_now(), 0, '', 'a', i::text, 't', 'd', '{}', ''
		FROM generate_series(1, 20000) AS i`)
	exec(t, p.admin, `INSERT INTO onceward_inbox (applied_at, event_id, consumer) `+
		`SELECT onceward_now() + i, int8send(i), 'c' FROM generate_series(1, 20000) AS i`)
	p.checkBoxes("on tables that have grown since")
	exec(t, p.admin, `ANALYZE onceward_outbox, onceward_delivery, onceward_inbox`)
	p.checkBoxes("on tables of twenty thousand")
	p.checkBox("dead letters are listed on tables of twenty thousand", func() {
		_, err := p.store.Messages(p.Context(),
			outbox.Filter{States: []outbox.State{outbox.StateHolding, outbox.StateDead}, Limit: 10})
		must(p, err)
	})
}

func (p *planned) checkBoxes(size string) {
	p.Helper()
	for name, f := range map[string]func(){
		"a message from its beginning to its end": p.message,
		"what waits is freed": func() {
			_, err := p.store.FreeMessages(p.Context())
			must(p, err)
		},
		"messages are purged": func() {
			_, err := p.store.PurgeMessages(p.Context(), 0, 1)
			must(p, err)
		},
		"events are purged": func() {
			_, err := p.store.PurgeEvents(p.Context(), 0, 1)
			must(p, err)
		},
	} {
		p.checkBox(name+" "+size, f)
	}
}

// checkBox does something several times, and looks at the plans by which it was done.
func (p *planned) checkBox(name string, f func()) {
	p.Helper()
	p.take()
	for range 8 {
		f()
	}
	ours := 0
	for _, plan := range p.take() {
		if onBoxes.MatchString(plan) {
			ours++
		}
		if found := walksBoxes.FindString(plan); found != "" && !asksForOne.MatchString(plan) {
			p.Errorf("%s: %s in\n%s", name, found, plan)
		}
	}
	if ours == 0 {
		p.Errorf("%s: no plan that touches the tables was seen", name)
	}
}

// message adds two messages, delivers them, and remembers one of them as an event.
func (p *planned) message() {
	p.Helper()
	box, err := outbox.New(p.store, outbox.Config{})
	must(p, err)
	p.used++
	topic := fmt.Sprint("planned ", p.used)
	must(p, p.store.InTx(p.Context(), func(ctx context.Context) error {
		for range 2 {
			if _, err := postgres.AddMessage(ctx, box, postgres.Tx(ctx),
				outbox.Message{Topic: topic, AggregateID: "1", Type: "t"}); err != nil {
				return err
			}
		}
		_, err := p.store.RememberEvent(ctx, onceward.Tx(ctx), "consumer", topic)
		return err
	}))
	claimed, err := p.store.ClaimMessages(p.Context(), []outbox.ClaimRequest{{Topic: topic, Limit: 10}}, time.Minute)
	must(p, err)
	if len(claimed) != 2 {
		p.Fatalf("O2: %d messages were claimed, want 2", len(claimed))
	}
	first, second := claimed[0].Lease(), claimed[1].Lease()
	_, err = p.store.ExtendMessages(p.Context(), []outbox.Lease{first, second}, time.Minute)
	must(p, err)
	must(p, p.store.RecordEffect(p.Context(), first, "ch_1", nil))
	must(p, p.store.FinishMessageTx(p.Context(), outbox.Outcome{Lease: first, State: outbox.StateDone},
		func(context.Context) error { return nil }))
	_, err = p.store.FinishMessages(p.Context(), []outbox.Outcome{{Lease: second, State: outbox.StateDead}})
	must(p, err)
	must(p, p.store.ReplayMessage(p.Context(), second.ID, nil))
	_, err = p.store.Messages(p.Context(), outbox.Filter{ID: first.ID})
	must(p, err)
	_, err = p.store.ConsumedEvents(p.Context(), topic)
	must(p, err)
	wants := []outbox.ClaimRequest{{Topic: topic, Limit: 10}}
	if _, err := p.store.ClaimMessages(p.Context(), wants, time.Minute); err != nil {
		p.Fatal(err)
	}
}
