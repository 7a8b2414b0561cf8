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

// AuditExecutions writes each request that gets a decision to the audit of executions before the request has any effect
// (rule L7): its caller, its key, and whether it was executed, replayed or refused. If the entry cannot be written the
// request is not executed: the caller gets 503, and may retry. The function returns the caller's name; for [Guard.Do]
// it may be nil, because [Call].Actor is used. An attempt that is resumed without its caller is written with the actor
// [ResumeActor]. Requests that are refused before a decision, and requests without a key, are not written. A caller may
// influence its name, so at most 255 bytes are written: a longer name is cut between two characters and ends in "…",
// and bytes that are not UTF-8 become "?".
//
// It costs one write to the store for each request, including replays. The janitor removes old entries. The store must
// be a [store.ExecutionAuditor]. Default: executions are not audited.
func AuditExecutions(who func(*http.Request) string) Option {
	return func(s *settings) error {
		s.audits, s.actor = true, who
		return nil
	}
}

// ResumeActor is the caller's name in the audit of executions for an operation that was resumed without its caller.
const ResumeActor = "onceward resumer"

// errNotAudited is returned when a request could not be written to the audit of executions: the request is not
// executed.
var errNotAudited = errors.New("onceward: the request could not be written to the audit of executions")

// audit writes the decision. A waiting request gets the same decision many times, and the decision is written once.
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

// maxActor is the maximum length of a caller's name in bytes.
const maxActor = 255

// boundedActor returns the caller's name as it is written: valid UTF-8 of limited length.
func boundedActor(who string) string {
	who = strings.ToValidUTF8(who, "?") // before the cut, which must fall between two characters
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
