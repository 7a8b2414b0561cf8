package postgres_test

import (
	"context"
	"time"

	"github.com/onceward/onceward/store"
)

// evidence is how that is read which is kept beside the records. It is all that an index finds, and may be sorted.
func (p *planned) evidence() map[string]func() {
	return map[string]func(){
		"late completions": func() {
			if found, err := p.store.LateCompletions(p.Context(), p.late()); err != nil || len(found) != 1 {
				p.Errorf("S6: late completions are (%v, %v)", found, err)
			}
		},
		"external events": func() {
			if found, err := p.store.ExternalEvents(p.Context(), aboutCharge(p.event(), "ch_1")); err != nil || len(found) != 1 {
				p.Errorf("B3: external events are (%v, %v)", found, err)
			}
		},
		"acts": func() {
			if found, err := p.store.Audit(p.Context(), p.act()); err != nil || len(found) != 1 {
				p.Errorf("L7: acts are (%v, %v)", found, err)
			}
		},
	}
}

func (p *planned) late() store.ID {
	id := idOf(p.key())
	f := store.LateCompletion{Claim: store.Claim{ID: id, Attempt: 1}, Response: answer("late").Response, At: time.Now()}
	must(p, p.store.AddLateCompletion(p.Context(), f))
	return id
}

func (p *planned) event() (subject string) {
	subject = p.key()
	_, err := p.store.AddExternalEvent(p.Context(), store.ExternalEvent{Source: "psp", Scope: "tenant", EventID: subject, Subject: subject})
	must(p, err)
	return subject
}

// aboutCharge chooses what the provider says of a charge.
func aboutCharge(subjects ...string) store.ExternalEventFilter {
	return store.ExternalEventFilter{Source: "psp", Scope: "tenant", Subjects: subjects}
}

func (p *planned) act() store.ID {
	id := idOf(p.key())
	must(p, p.store.AddAudit(p.Context(), store.AuditEntry{ID: id, Actor: "ops"}))
	return id
}

func (p *planned) purges(purge func(context.Context, time.Duration, int) (int, error)) {
	if n, err := purge(p.Context(), -time.Second, 1); err != nil || n != 1 {
		p.Errorf("L7: purged (%d, %v)", n, err)
	}
}
