package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
)

// Resolver finds out what became of an unknown operation. It is asked about one attempt, which the record names, and
// its answer settles that attempt alone. An error or a panic is an answer that was not learned: it is asked again
// later. It must end when its context does, because a place of the poller is taken until then, and may be called for
// several records at a time.
type Resolver interface {
	Resolve(ctx context.Context, rec *store.Record) (Answer, error)
}

// ResolverFunc is a function that is a [Resolver].
type ResolverFunc func(ctx context.Context, rec *store.Record) (Answer, error)

// Resolve calls f.
func (f ResolverFunc) Resolve(ctx context.Context, rec *store.Record) (Answer, error) {
	return f(ctx, rec)
}

// Answer is what was learned about an operation. Make it with [Completed], [NotExecuted], [NotFound] or [StillUnknown],
// and for a phased operation with [Step], [NotExecuted], [NotFound], [StillUnknown] or [Finish]: they are about its
// step at hand.
type Answer struct {
	kind       answerKind
	completion store.Completion
	step       phase.StepOutcome
	reason     string
}

type answerKind uint8

const (
	stillUnknown answerKind = iota
	completed
	finished
	stepSettled
	notExecuted
	notFound
)

// Completed says that the operation was done, and what its answer is: every retry gets it. A payment that was declined
// is completed too, with its failure as the answer. The provider's id may be empty.
//
// It is refused for a phased operation that has a recovery point, because steps would be left out: see [Step] and
// [Finish].
func Completed(response store.Response, providerID string) Answer {
	return Answer{kind: completed, completion: store.Completion{Response: response, ProviderID: providerID}}
}

// Step says what was learned of the step at hand of a phased operation, which then goes on behind it or at it: its
// remaining steps are done, and its answer is its own. With the definition at hand, [phase.Operation.InDoubt] makes the
// outcome:
//
//	doubt, err := book.InDoubt(guard, rec)
//	…
//	doubt.Data.Charge = charge.ID
//	return reconcile.Step(doubt.Done(charge.ID)), nil
func Step(o phase.StepOutcome) Answer { return Answer{kind: stepSettled, step: o} }

// Finish ends a phased operation with an answer, as [phase.Finish] does: for a card that was declined. The steps that
// are left are not done, and what earlier ones did is for the resolver to take back before. The provider's id may be
// empty.
func Finish(response store.Response, providerID string) Answer {
	a := Completed(response, providerID)
	a.kind = finished
	return a
}

// NotExecuted says that the operation was not done and will not be: the other system has refused or cancelled it. A
// retry executes. Of a phased operation it says so of the step at hand, which is then done when the operation goes on.
func NotExecuted(reason string) Answer { return Answer{kind: notExecuted, reason: reason} }

// NotFound says that the other system does not know of the operation now. Whether that means that it was not executed
// is for the [Rule] to say.
func NotFound() Answer { return Answer{kind: notFound, reason: "the other system does not know of it"} }

// StillUnknown says that nothing was learned, such as for a payment that is still being processed.
func StillUnknown(reason string) Answer { return Answer{kind: stillUnknown, reason: reason} }

// Response makes a stored answer of a status, header fields and a body, as a handler would have written it.
func Response(status int, header http.Header, body []byte) store.Response {
	response := store.Response{Status: status, Body: body}
	for name, values := range header {
		for _, value := range values {
			response.Header = append(response.Header, store.HeaderField{Name: http.CanonicalHeaderKey(name), Value: value})
		}
	}
	slices.SortStableFunc(response.Header, func(a, b store.HeaderField) int { return cmp.Compare(a.Name, b.Name) })
	return response
}

// Rule says how the unknown operations of one route are settled.
type Rule struct {
	// Resolver asks the other system. Without one only external events and people settle.
	Resolver Resolver

	// Deduplicates says that the downstream key was sent and that the other system recognises it. "Not found" then
	// means not executed, after Arrival: should the request still arrive, it and the retry are one to the other system.
	// If the client does not come back there is no retry, and what arrives after the conclusion has a record that says
	// otherwise: so set Arrival too.
	Deduplicates bool
	// Arrival is the longest time for which a request can still be on its way, with all that may hold it up. After it,
	// "not found" means not executed, if the other system deduplicates, or OwnerGone says that the owner of the attempt
	// makes no more requests. Without either, only a person concludes from "not found". Default: none; with
	// Deduplicates "not found" is then believed at once.
	//
	// The time counts from when this process first heard "not found", or first was told by OwnerGone, because the owner
	// may have sent its request just before it went, and the question must be asked after it is over. It goes by a
	// clock that nobody sets. A process that is started anew counts anew. With an Arrival longer than all tries take, a
	// record is a dead letter before.
	Arrival time.Duration
	// OwnerGone reports whether the process that made the attempt is known to be gone, for good: not paused, not cut
	// off. It is called when "not found" was answered. For a phased operation the record's Attempt is here the one that
	// meant to make the call, which later ones may have taken over from.
	OwnerGone func(ctx context.Context, rec *store.Record) (bool, error)

	// Source names the sender of the external events about these operations, and Steps the steps whose downstream keys
	// they carry. A external event may also carry the provider's id that the record holds. External events are read
	// before the resolver is asked. While a call of a phased operation is in doubt, only those that carry the key of
	// its step are read: others are about other steps.
	Source string
	Steps  []string
	// Interpret makes an answer of the external events about a record, in the order in which they happened: the last
	// one counts, and an older one that came late is none. It may also ask the other system for the latest.
	//
	// All attempts share their downstream key, also those under a record of the same ID that has expired since. What an
	// external event says about an earlier attempt must not settle this one, so conclude [NotExecuted] only from an
	// external event that names the attempt it is about, or where a retry is the same operation to the other system.
	Interpret func(ctx context.Context, rec *store.Record, events []store.ExternalEvent) (Answer, error)
}

// subjects are what external events about a record may be addressed to. With an error the downstream keys are missing.
func (r *Rule) subjects(guard *onceward.Guard, rec *store.Record) (subjects []string, err error) {
	if rec.ProviderID != "" {
		subjects = append(subjects, rec.ProviderID)
	}
	for _, step := range r.Steps {
		key, err := guard.DownstreamKey(rec, step)
		if err != nil {
			return subjects, err
		}
		subjects = append(subjects, key)
	}
	return subjects, nil
}

// heeded are the subjects of the external events that may settle a record. While a call of a phased operation is in
// doubt that is the key of its step alone: the provider's id that the record holds is most likely that of an earlier
// one.
func (r *Rule) heeded(guard *onceward.Guard, rec *store.Record) ([]string, error) {
	progress, err := phase.Inspect(rec)
	if err != nil || !progress.InDoubt {
		return r.subjects(guard, rec)
	}
	if !slices.Contains(r.Steps, progress.Step) {
		return nil, nil
	}
	key, err := guard.DownstreamKey(rec, progress.Step)
	return []string{key}, err
}

// ofCaller is the record with the attempt that meant to make the call.
func ofCaller(rec *store.Record) *store.Record {
	progress, err := phase.Inspect(rec)
	if err != nil || progress.CalledBy == 0 {
		return rec
	}
	caller := *rec
	caller.Attempt = progress.CalledBy
	return &caller
}

// onItsWay is the answer while the request may still arrive.
var onItsWay = StillUnknown("the other system does not know of it yet: the request may still be on its way")

// judgeNotFound decides what "not found" means (scenario 31). Asked is when the question was asked.
func (r *Rule) judgeNotFound(ctx context.Context, rec *store.Record, asked time.Time, seen *departures) (Answer, error) {
	claim := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	if r.Deduplicates {
		if r.Arrival > 0 && asked.Sub(seen.since(claim)) < r.Arrival {
			return onItsWay, nil
		}
		return NotExecuted("the other system does not know of it, and would recognise its downstream key"), nil
	}
	if r.Arrival <= 0 || r.OwnerGone == nil {
		return StillUnknown("the other system does not know of it, which proves nothing: the request may still arrive"), nil
	}
	gone, err := r.OwnerGone(ctx, ofCaller(rec))
	if err != nil {
		return Answer{}, fmt.Errorf("reconcile: is the owner gone: %w", err)
	}
	if !gone {
		seen.revoke(claim)
		return StillUnknown("the other system does not know of it, but the owner may still be there"), nil
	}
	if asked.Sub(seen.since(claim)) < r.Arrival {
		return onItsWay, nil
	}
	return NotExecuted("the other system does not know of it, the time to arrive is over, and its owner is gone"), nil
}
