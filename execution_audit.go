package onceward

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/onceward/onceward/store"
)

// AuditExecutions writes each request that gets a decision to the audit of executions before it has any effect (L7):
// who called, under which key, and whether it was executed, replayed or refused. What cannot be written is not done:
// the caller gets 503, and may try again. The function says who calls; for [Guard.Do] it may be nil, because
// [Call].Actor says it. An attempt that is resumed without its caller is written with the actor [ResumeActor]. Requests
// that are refused before a decision, and those without a key, are not written. Of who calls, at most 255 bytes are
// written, because callers may have a say in it: what is longer is cut between two characters and ends in "…", and
// bytes that are no UTF-8 become "?".
//
// It costs a write to the store with each request, replays too. The janitor removes old entries. The store must be a
// [store.ExecutionAuditor]. Default: executions are not audited.
func AuditExecutions(who func(*http.Request) string) Option {
	return func(s *settings) error {
		s.audits, s.actor = true, who
		return nil
	}
}

// ResumeActor is who called, in the audit of executions, where an operation goes on without its caller.
const ResumeActor = "onceward resumer"

// errNotAudited is returned where a request could not be written to the audit of executions: nothing of it is done.
var errNotAudited = errors.New("onceward: the request could not be written to the audit of executions")

// audit writes what was decided. A request that waits is told the same many times, and is written once.
func (e *execution) audit(ctx context.Context, v *store.Verdict) error {
	if e.audited == v.Decision && v.Decision != store.DecisionExecute {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.guard.config.StoreTimeout)
	defer cancel()
	err := e.guard.executions.AddExecution(ctx, store.ExecutionEntry{
		ID: e.reservation.ID, Operation: e.op.name, Actor: boundedActor(e.actor), Decision: v.Decision, Origin: v.Origin,
		Attempt: v.Record.Attempt,
	})
	if err != nil {
		e.storeFailed("add execution", err)
		return fmt.Errorf("%w: %w", errNotAudited, err)
	}
	e.audited = v.Decision
	return nil
}

// maxActor is how many bytes of who called are written at most.
const maxActor = 255

// boundedActor is who called, as it is written: short, and a text.
func boundedActor(who string) string {
	who = strings.ToValidUTF8(who, "?") // before it is cut: what is no text has no place to cut it at
	if len(who) <= maxActor {
		return who
	}
	const more = "…"
	end := maxActor - len(more)
	for !utf8.RuneStart(who[end]) {
		end--
	}
	return who[:end] + more
}
