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

// Rule says how the unknown operations of one route are settled.
type Rule struct {
	// Resolver asks the other system. Default: none, and only external events and people settle.
	Resolver Resolver

	// Deduplicates says that the downstream key was sent and that the other system recognises it. "Not found" then
	// means not executed, after Arrival: should the request still arrive, it and the retry are one to the other system.
	// If the client does not come back there is no retry, and what arrives after the conclusion has a record that says
	// otherwise: so set Arrival too. Default: false.
	Deduplicates bool
	// Arrival is the longest time for which a request can still be on its way, with all that may hold it up. After it,
	// "not found" means not executed, if the other system deduplicates, or OwnerGone says that the owner of the attempt
	// makes no more requests. Without either, only a person concludes from "not found". Default: none; with
	// Deduplicates "not found" is then believed at once.
	//
	// The time counts from when this process first heard "not found", or first was told by OwnerGone, because the owner
	// may have sent its request just before it went, and the question must be asked after it is over. It is measured by
	// the monotonic clock of the process, and a process that was restarted counts from the beginning. With an Arrival
	// longer than all attempts take, a record is a dead letter before.
	Arrival time.Duration
	// OwnerGone reports whether the process that made the attempt is known to be gone, for good: not paused, not cut
	// off. It is called when "not found" was answered. For a phased operation the record's Attempt is here the one that
	// meant to make the call, which later ones may have taken over from. Default: none, and no owner counts as gone.
	OwnerGone func(ctx context.Context, rec *store.Record) (bool, error)

	// Source names the sender of the external events about these operations, and Steps the steps whose downstream keys
	// they carry. An external event may also carry the provider's id that the record holds. External events are read
	// before the resolver is asked. While a call of a phased operation is in doubt, only those that carry the key of
	// its step are read: others are about other steps. Default: none.
	Source string
	Steps  []string
	// Interpret makes an answer of the external events about a record, in the order in which they happened: the last
	// one counts, and an older one that came late is none. It may also ask the other system for the latest.
	// Required if there is a Source.
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
func (r *Rule) judgeNotFound(
	ctx context.Context, rec *store.Record, asked time.Time, seen *goneOwners,
) (Answer, error) {
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

// goneOwners are the attempts whose owners this process has found to be gone, with the time at which it found that
// first, by its monotonic clock. A process that was restarted counts from the beginning: that is later, so it waits
// longer, which is safe.
type goneOwners struct {
	mu   sync.Mutex
	seen map[store.Claim]goneOwner
}

type goneOwner struct{ first, last time.Time }

// forgetAfter is how long at least an attempt is remembered that is not asked after again.
const forgetAfter = 48 * time.Hour

// since notes that the owner is gone, and says since when that is known.
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

// revoke notes that the owner is not known to be gone: what was found before was wrong.
func (d *goneOwners) revoke(c store.Claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.seen, c)
}

// forget drops those that have not been asked after for that long: they are settled.
func (d *goneOwners) forget(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c, one := range d.seen {
		if time.Since(one.last) > after {
			delete(d.seen, c)
		}
	}
}
