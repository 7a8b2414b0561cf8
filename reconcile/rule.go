package reconcile

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
)

// Resolver finds out the outcome of an unknown operation. It is called for one attempt, which the record names, and its
// answer settles only that attempt. An error or a panic means that the outcome was not found: it is called again later.
// It must end when its context does, because it keeps a place of the poller until then, and may be called for several
// records at a time.
type Resolver interface {
	Resolve(ctx context.Context, rec *store.Record) (Answer, error)
}

// ResolverFunc is an adapter from a function to a [Resolver].
type ResolverFunc func(ctx context.Context, rec *store.Record) (Answer, error)

// Resolve calls f.
func (f ResolverFunc) Resolve(ctx context.Context, rec *store.Record) (Answer, error) {
	return f(ctx, rec)
}

// Rule defines how the unknown operations of one route are settled.
type Rule struct {
	// Resolver queries the other system. Default: none, and only external events and people settle.
	Resolver Resolver

	// Deduplicates means that the downstream key was sent and that the other system recognises it. "Not found" then means
	// not executed, after Arrival: if the request still arrives, it and the retry are one operation to the other system.
	// If the client does not retry, a request that arrives later contradicts the record: so set Arrival too. Default:
	// false.
	Deduplicates bool
	// Arrival is the longest time for which a request can still be on its way, with all possible delays. After it, "not
	// found" means not executed, if the other system deduplicates, or OwnerGone reports that the owner of the attempt
	// makes no more requests. Without either, only a person can conclude from "not found". Default: none; with
	// Deduplicates "not found" then counts immediately.
	//
	// The time counts from the first "not found" in this process, or the first true of OwnerGone, because the owner may
	// have sent its request just before it ended, and the query must be made after the time. It is measured by the
	// monotonic clock of the process, and a restarted process counts from the beginning. If Arrival is longer than all
	// attempts take, a record becomes a dead letter before.
	Arrival time.Duration
	// OwnerGone reports whether the process that made the attempt has certainly ended: not paused, not cut off. It is
	// called when the answer was "not found". For a phased operation the record's Attempt is then the attempt that
	// intended to make the call, which later attempts may have taken over from. Default: none, and no owner counts as
	// gone.
	OwnerGone func(ctx context.Context, rec *store.Record) (bool, error)

	// Source names the sender of the external events about these operations, and Steps the steps whose downstream keys
	// they carry. An external event may also carry the provider's id in the record. External events are read before the
	// resolver is called. While a call of a phased operation is in doubt, only events with the key of its step are read:
	// others concern other steps. Default: none.
	Source string
	Steps  []string
	// Interpret returns an answer from the external events about a record, in the order in which they happened: the last
	// one counts, not an older one that arrived late. It may also query the other system for the latest state. Required if
	// there is a Source.
	//
	// All attempts share their downstream key, including attempts of an expired record with the same ID. An external event
	// about an earlier attempt must not settle this one, so return [NotExecuted] only for an external event that names its
	// attempt, or if a retry is the same operation to the other system.
	Interpret func(ctx context.Context, rec *store.Record, events []store.ExternalEvent) (Answer, error)
}

// subjects returns the subjects that external events about a record may have. With an error the downstream keys are
// missing.
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

// eventSubjects returns the subjects of the external events that may settle a record. While a call of a phased
// operation is in doubt this is only the key of its step: the provider's id in the record probably belongs to an
// earlier step.
func (r *Rule) eventSubjects(guard *onceward.Guard, rec *store.Record) ([]string, error) {
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

// atCall returns the record with the attempt that intended to make the call.
func atCall(rec *store.Record) *store.Record {
	progress, err := phase.Inspect(rec)
	if err != nil || progress.CalledBy == 0 {
		return rec
	}
	caller := *rec
	caller.Attempt = progress.CalledBy
	return &caller
}

// mayArrive is the answer while the request may still arrive.
var mayArrive = StillUnknown("the other system does not know of it yet: the request may still be on its way")

// judgeNotFound decides what "not found" means (scenario 31). asked is when the query was made.
func (r *Rule) judgeNotFound(
	ctx context.Context, rec *store.Record, asked time.Time, seen *goneOwners,
) (Answer, error) {
	claim := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	if r.Deduplicates {
		if r.Arrival > 0 && asked.Sub(seen.since(claim)) < r.Arrival {
			return mayArrive, nil
		}
		return NotExecuted("the other system does not know of it, and would recognise its downstream key"), nil
	}
	if r.Arrival <= 0 || r.OwnerGone == nil {
		return StillUnknown("the other system does not know of it, which proves nothing: the request may still arrive"), nil
	}
	gone, err := r.OwnerGone(ctx, atCall(rec))
	if err != nil {
		return Answer{}, fmt.Errorf("reconcile: is the owner gone: %w", err)
	}
	if !gone {
		seen.revoke(claim)
		return StillUnknown("the other system does not know of it, but the owner may still be there"), nil
	}
	if asked.Sub(seen.since(claim)) < r.Arrival {
		return mayArrive, nil
	}
	return NotExecuted("the other system does not know of it, the time to arrive is over, and its owner is gone"), nil
}

// goneOwners are the attempts whose owners this process has found to be gone, with the time of the first finding by its
// monotonic clock. A restarted process counts from the beginning, so it waits longer, which is safe.
type goneOwners struct {
	mu   sync.Mutex
	seen map[store.Claim]goneOwner
}

type goneOwner struct{ first, last time.Time }

// forgetAfter is the least time for which an attempt that is no longer queried is remembered.
const forgetAfter = 48 * time.Hour

// since records that the owner is gone, and returns since when this is known.
func (d *goneOwners) since(c store.Claim) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen == nil {
		d.seen = make(map[store.Claim]goneOwner)
	}
	now := time.Now()
	one, ok := d.seen[c]
	if !ok {
		one.first = now
	}
	one.last = now
	d.seen[c] = one
	return one.first
}

// revoke records that the owner is not known to be gone: the earlier finding was wrong.
func (d *goneOwners) revoke(c store.Claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.seen, c)
}

// forget drops attempts that have not been queried for that long: they are settled.
func (d *goneOwners) forget(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c, one := range d.seen {
		if time.Since(one.last) > after {
			delete(d.seen, c)
		}
	}
}
