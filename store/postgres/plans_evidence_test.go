package postgres_test

import (
	"context"
	"time"

	"github.com/onceward/onceward"
)

// evidence is how that is read which is kept beside the records. It is all that an index finds, and may be sorted.
func (p *planned) evidence() map[string]func() {
	return map[string]func(){
		"findings": func() {
			if found, err := p.store.Findings(p.Context(), p.finding()); err != nil || len(found) != 1 {
				p.Errorf("S6: findings are (%v, %v)", found, err)
			}
		},
		"notices": func() {
			if found, err := p.store.Notices(p.Context(), aboutCharge(p.notice(), "ch_1")); err != nil || len(found) != 1 {
				p.Errorf("B3: notices are (%v, %v)", found, err)
			}
		},
		"acts": func() {
			if found, err := p.store.Audit(p.Context(), p.act()); err != nil || len(found) != 1 {
				p.Errorf("L7: acts are (%v, %v)", found, err)
			}
		},
	}
}

func (p *planned) finding() onceward.ID {
	id := idOf(p.key())
	f := onceward.Finding{Claim: onceward.Claim{ID: id, Attempt: 1}, Response: answer("late").Response, At: time.Now()}
	must(p, p.store.AddFinding(p.Context(), f))
	return id
}

func (p *planned) notice() (subject string) {
	subject = p.key()
	_, err := p.store.AddNotice(p.Context(), onceward.Notice{Source: "psp", Scope: "tenant", EventID: subject, Subject: subject})
	must(p, err)
	return subject
}

// aboutCharge chooses what the provider says of a charge.
func aboutCharge(subjects ...string) onceward.NoticeFilter {
	return onceward.NoticeFilter{Source: "psp", Scope: "tenant", Subjects: subjects}
}

func (p *planned) act() onceward.ID {
	id := idOf(p.key())
	must(p, p.store.AddAudit(p.Context(), onceward.AuditEntry{ID: id, Actor: "ops"}))
	return id
}

func (p *planned) purges(purge func(context.Context, time.Duration, int) (int, error)) {
	if n, err := purge(p.Context(), -time.Second, 1); err != nil || n != 1 {
		p.Errorf("L7: purged (%d, %v)", n, err)
	}
}
