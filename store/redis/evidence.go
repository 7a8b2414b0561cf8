package redis

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/redis/rueidis"
)

// Store also implements these interfaces.
var (
	_ store.LateCompletionKeeper = (*Store)(nil)
	_ store.ExternalEventKeeper  = (*Store)(nil)
	_ store.Auditor              = (*Store)(nil)
	_ store.AuditLister          = (*Store)(nil)
	_ store.ExecutionAuditor     = (*Store)(nil)
)

const (
	// lateKept is how long late completions are kept.
	lateKept = 90 * 24 * time.Hour
	// evidenceFormat is the first byte of each piece of evidence.
	evidenceFormat = 1
)

// AddLateCompletion implements [store.LateCompletionKeeper]. The late completions of an ID are removed 90 days after
// the last one.
func (s *Store) AddLateCompletion(ctx context.Context, late store.LateCompletion) error {
	key, _ := s.names.named(kindLate, late.ID.AppendBinary(nil))
	b := binary.AppendVarint([]byte{evidenceFormat}, late.Attempt)
	b = binary.AppendVarint(b, microseconds(late.At))
	b = appendResponse(b, &late.Response)
	_, err := s.run(ctx, lateScript, []string{key}, rueidis.BinaryString(b), number(milliseconds(lateKept)))
	return err
}

// LateCompletions implements [store.LateCompletionKeeper].
func (s *Store) LateCompletions(ctx context.Context, id store.ID) ([]store.LateCompletion, error) {
	key, _ := s.names.named(kindLate, id.AppendBinary(nil))
	client := s.sender.client
	kept, err := s.sender.ask(ctx, client, client.B().Lrange().Key(key).Start(0).Stop(-1).Build())[0].AsStrSlice()
	if err != nil {
		return nil, unavailable(err)
	}
	found := make([]store.LateCompletion, 0, len(kept))
	for _, stored := range kept {
		d := evidenceDecoder(stored)
		late := store.LateCompletion{Claim: store.Claim{ID: id, Attempt: d.int()}, At: fromMicroseconds(d.int())}
		late.Response = d.response()
		if err := d.end(); err != nil {
			return nil, err
		}
		found = append(found, late)
	}
	slices.SortStableFunc(found, func(a, b store.LateCompletion) int { return a.At.Compare(b.At) })
	return found, nil
}

// evidenceDecoder reads a piece of evidence after its format.
func evidenceDecoder(stored string) *decoder {
	d := &decoder{rest: stored}
	if f := d.byte(); d.err == nil && f != evidenceFormat {
		d.fail("a format that is not known to this program")
	}
	return d
}

// end returns the error of the decoding, if any.
func (d *decoder) end() error {
	if d.err == nil && d.rest != "" {
		d.fail("there are bytes too many")
	}
	if d.err != nil {
		return &store.UnreadableError{Reason: d.err.Error()}
	}
	return nil
}

// eventName returns the identity of an external event.
func eventName(e *store.ExternalEvent) []byte {
	b := appendText(nil, e.Source)
	if e.AnyScope {
		b = append(b, 1)
	} else {
		b = appendText(append(b, 0), e.Scope)
	}
	return append(b, e.EventID...)
}

// subjectName returns the name by which external events are found.
func subjectName(source, subject string) []byte { return append(appendText(nil, source), subject...) }

// AddExternalEvent implements [store.ExternalEventKeeper]. The event and the index of its subject are in different
// slots of a cluster: the index is written first, so that an entry may have no event, but every event has an entry. The
// entry is written again afterwards, in case the event, and the entry with it, was purged between the two writes.
func (s *Store) AddExternalEvent(ctx context.Context, e store.ExternalEvent) (added bool, err error) {
	if e.AnyScope {
		e.Scope = ""
	}
	key, in := s.names.named(kindEvent, eventName(&e))
	subject, _ := s.names.named(kindSubject, subjectName(e.Source, e.Subject))
	if _, err := s.run(ctx, subjectScript, []string{subject}, key); err != nil {
		return false, err
	}
	b := appendText(appendText(appendText(appendText([]byte{evidenceFormat}, e.Source), e.Scope), e.EventID), e.Subject)
	if e.AnyScope {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	b = appendText(binary.AppendVarint(b, microseconds(e.At)), e.Body)
	reply, err := s.run(ctx, eventScript, []string{key, in.base + kindReceived}, rueidis.BinaryString(b))
	if err != nil {
		return false, err
	}
	if n, err := reply.AsInt64(); err != nil || n == 0 {
		return false, unavailable(err)
	}
	_, err = s.run(ctx, subjectScript, []string{subject}, key)
	return true, err
}

// decodeEvent decodes an external event after the time at which it was received.
func decodeEvent(stored string) (e store.ExternalEvent, err error) {
	received := decoder{rest: stored}
	e.ReceivedAt = received.time()
	d := evidenceDecoder(received.rest)
	for _, s := range [...]*string{&e.Source, &e.Scope, &e.EventID, &e.Subject} {
		*s = d.text()
	}
	e.AnyScope = d.byte() == 1
	e.At = fromMicroseconds(d.int())
	e.Body = d.bytes()
	return e, d.end()
}

// ExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) ExternalEvents(
	ctx context.Context, f store.ExternalEventFilter,
) (found []store.ExternalEvent, err error) {
	if err := ctx.Err(); err != nil {
		return nil, unavailable(err)
	}
	for i, subject := range f.Subjects {
		if slices.Contains(f.Subjects[:i], subject) {
			continue
		}
		index, _ := s.names.named(kindSubject, subjectName(f.Source, subject))
		events, err := s.eventsIn(ctx, index)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			if e.Source == f.Source && e.Subject == subject && e.MaySettle(f.Scope) {
				found = append(found, e)
			}
		}
	}
	slices.SortFunc(found, func(a, b store.ExternalEvent) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.EventID, b.EventID))
	})
	return found, nil
}

// staleEntry is how old an entry of a subject's index without an event must be to be removed: the event of a newer
// entry may not be stored yet.
const staleEntry = time.Hour

// eventsIn returns the events in the index of a subject, and removes entries without an event.
func (s *Store) eventsIn(ctx context.Context, index string) (found []store.ExternalEvent, err error) {
	client := s.sender.client
	reply := s.sender.ask(ctx, client, client.B().Zrange().Key(index).Min("0").Max("-1").Withscores().Build())[0]
	entries, err := reply.AsZScores()
	if err != nil {
		return nil, unavailable(err)
	}
	for some := range slices.Chunk(entries, chunk) {
		commands := make([]rueidis.Completed, len(some))
		for i, e := range some {
			commands[i] = client.B().Get().Key(e.Member).Build()
		}
		for i, reply := range s.sender.ask(ctx, client, commands...) {
			stored, err := reply.ToString()
			if rueidis.IsRedisNil(err) {
				if err := s.dropStale(ctx, index, some[i]); err != nil {
					return nil, err
				}
				continue
			}
			if err != nil {
				return nil, unavailable(err)
			}
			e, err := decodeEvent(stored)
			if err != nil {
				return nil, err
			}
			found = append(found, e)
		}
	}
	return found, nil
}

// dropStale removes an entry without an event, if it is old.
func (s *Store) dropStale(ctx context.Context, index string, entry rueidis.ZScore) error {
	now, err := s.clock(ctx)
	if err != nil || now.UnixMicro()-int64(entry.Score) < staleEntry.Microseconds() {
		return err
	}
	return s.unsubject(ctx, index, entry)
}

func (s *Store) unsubject(ctx context.Context, index string, entry rueidis.ZScore) error {
	_, err := s.run(ctx, unsubjectScript, []string{index}, entry.Member, number(int64(entry.Score)))
	return err
}

// PurgeExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) PurgeExternalEvents(ctx context.Context, age time.Duration, limit int) (purged int, err error) {
	return s.purge(ctx, kindReceived, age, limit, func(in *bucket, key, before string, _ int) (int, error) {
		return s.forgetEvent(ctx, in, key, before)
	})
}

// forgetEvent removes an external event, and its entry in the index of its subject.
func (s *Store) forgetEvent(ctx context.Context, in *bucket, key, before string) (int, error) {
	client := s.sender.client
	stored, err := s.sender.ask(ctx, client, client.B().Get().Key(key).Build())[0].ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		return 0, unavailable(err)
	}
	var index string
	var entry rueidis.ZScore
	if e, err := decodeEvent(stored); err == nil {
		index, _ = s.names.named(kindSubject, subjectName(e.Source, e.Subject))
		score, err := s.sender.ask(ctx, client, client.B().Zscore().Key(index).Member(key).Build())[0].AsFloat64()
		if err != nil && !rueidis.IsRedisNil(err) {
			return 0, unavailable(err)
		}
		entry = rueidis.ZScore{Member: key, Score: score}
	}
	reply, err := s.run(ctx, forgetScript, []string{key, in.base + kindReceived}, before)
	if err != nil {
		return 0, err
	}
	n, err := reply.AsInt64()
	if err == nil && n > 0 && entry.Score > 0 {
		err = s.unsubject(ctx, index, entry)
	}
	return int(n), unavailable(err)
}

// purge removes at most limit items that were kept longer ago than an age, the oldest first. An index by time contains
// their keys.
func (s *Store) purge(ctx context.Context, kind string, age time.Duration, limit int,
	remove func(in *bucket, key, before string, limit int) (int, error),
) (purged int, err error) {
	now, err := s.clock(ctx)
	if err != nil || limit <= 0 {
		return 0, err
	}
	before := number(now.Add(-age).UnixMicro())
	oldest, err := s.oldest(ctx, kind, before, limit)
	if err != nil {
		return 0, err
	}
	for _, e := range oldest {
		n, err := remove(e.in, e.Member, before, limit-purged)
		purged += n
		if err != nil || purged >= limit {
			return purged, err
		}
	}
	return purged, nil
}

// aged is an entry of an index by time.
type aged struct {
	in *bucket
	rueidis.ZScore
}

// oldest returns the first entries before a moment of an index that is spread over the buckets.
func (s *Store) oldest(ctx context.Context, kind, before string, limit int) (oldest []aged, err error) {
	client := s.sender.client
	for first := 0; first < buckets; first += chunk {
		among := s.names.buckets[first : first+chunk]
		commands := make([]rueidis.Completed, len(among))
		for i := range among {
			commands[i] = client.B().Zrangebyscore().Key(among[i].base+kind).Min("-inf").Max("("+before).Withscores().
				Limit(0, int64(limit)).Build()
		}
		for i, reply := range s.sender.ask(ctx, client, commands...) {
			entries, err := reply.AsZScores()
			if err != nil {
				return nil, unavailable(err)
			}
			for _, e := range entries {
				oldest = append(oldest, aged{&among[i], e})
			}
		}
		slices.SortFunc(oldest, func(a, b aged) int { return cmp.Compare(a.Score, b.Score) })
		oldest = oldest[:min(len(oldest), limit)]
	}
	return oldest, nil
}

// AddAudit implements [store.Auditor].
func (s *Store) AddAudit(ctx context.Context, e store.AuditEntry) error {
	key, in := s.names.named(kindAudit, e.ID.AppendBinary(nil))
	b := binary.AppendVarint([]byte{evidenceFormat}, e.Attempt)
	for _, text := range [...]string{e.Actor, e.Action, e.Reason, e.Outcome} {
		b = appendText(b, text)
	}
	_, err := s.run(ctx, auditScript, []string{key, in.base + kindWritten}, rueidis.BinaryString(b))
	return err
}

// decodeAudit decodes an entry of an audit.
func decodeAudit(id store.ID, stored string) (store.AuditEntry, error) {
	written := decoder{rest: stored}
	e := store.AuditEntry{ID: id, At: written.time()}
	d := evidenceDecoder(written.rest)
	e.Attempt = d.int()
	for _, text := range [...]*string{&e.Actor, &e.Action, &e.Reason, &e.Outcome} {
		*text = d.text()
	}
	return e, d.end()
}

// Audit implements [store.Auditor].
func (s *Store) Audit(ctx context.Context, id store.ID) ([]store.AuditEntry, error) {
	key, _ := s.names.named(kindAudit, id.AppendBinary(nil))
	client := s.sender.client
	kept, err := s.sender.ask(ctx, client, client.B().Zrange().Key(key).Min("0").Max("-1").Build())[0].AsStrSlice()
	if err != nil {
		return nil, unavailable(err)
	}
	found := make([]store.AuditEntry, 0, len(kept))
	for _, stored := range kept {
		e, err := decodeAudit(id, stored)
		if err != nil {
			return nil, err
		}
		found = append(found, e)
	}
	return found, nil
}

// ListAudit implements [store.AuditLister]. Without an ID it reads the audit of each ID that has one.
func (s *Store) ListAudit(ctx context.Context, f store.AuditFilter) (chosen []store.AuditEntry, err error) {
	var keys []string
	if f.ID != (store.ID{}) {
		key, _ := s.names.named(kindAudit, f.ID.AppendBinary(nil))
		keys = append(keys, key)
	} else if keys, err = s.audited(ctx); err != nil {
		return nil, err
	}
	err = s.newest(ctx, keys, &f, f.Page(), func(key, stored string) error {
		id, err := s.names.idOf(kindAudit, key)
		if err != nil {
			return err
		}
		e, err := decodeAudit(id, stored)
		chosen = append(chosen, e)
		return err
	})
	slices.SortStableFunc(chosen, func(a, b store.AuditEntry) int { return b.At.Compare(a.At) })
	return chosen[:min(len(chosen), f.Page())], err
}

// audited returns the keys of all audits.
func (s *Store) audited(ctx context.Context) (keys []string, err error) {
	client := s.sender.client
	for among := range slices.Chunk(s.names.buckets[:], chunk) {
		commands := make([]rueidis.Completed, len(among))
		for i := range among {
			commands[i] = client.B().Zrange().Key(among[i].base + kindWritten).Min("0").Max("-1").Build()
		}
		for _, reply := range s.sender.ask(ctx, client, commands...) {
			some, err := reply.AsStrSlice()
			if err != nil {
				return nil, unavailable(err)
			}
			keys = append(keys, some...)
		}
	}
	return keys, nil
}

// newest reads the last entries that a filter may select from each of some sorted sets, at most limit of each.
func (s *Store) newest(
	ctx context.Context, keys []string, f *store.AuditFilter, limit int, each func(key, stored string) error,
) error {
	since, until := "-inf", "+inf"
	if !f.Since.IsZero() {
		since = number(f.Since.UnixMicro())
	}
	if !f.Until.IsZero() {
		until = "(" + number(f.Until.UnixMicro())
	}
	client := s.sender.client
	for some := range slices.Chunk(keys, chunk) {
		commands := make([]rueidis.Completed, len(some))
		for i, key := range some {
			commands[i] = client.B().Zrevrangebyscore().Key(key).Max(until).Min(since).Limit(0, int64(limit)).Build()
		}
		for i, reply := range s.sender.ask(ctx, client, commands...) {
			entries, err := reply.AsStrSlice()
			if err != nil {
				return unavailable(err)
			}
			for _, stored := range entries {
				if err := each(some[i], stored); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// PurgeAudit implements [store.Auditor].
func (s *Store) PurgeAudit(ctx context.Context, age time.Duration, limit int) (purged int, err error) {
	return s.purgeEntries(ctx, kindWritten, age, limit)
}

// purgeEntries removes the oldest entries of sorted sets whose keys are in an index.
func (s *Store) purgeEntries(ctx context.Context, kind string, age time.Duration, limit int) (purged int, err error) {
	return s.purge(ctx, kind, age, limit, func(in *bucket, key, before string, limit int) (int, error) {
		reply, err := s.run(ctx, purgeScript, []string{key, in.base + kind}, before, number(limit))
		if err != nil {
			return 0, err
		}
		n, err := reply.AsInt64()
		return int(n), unavailable(err)
	})
}

// AddExecution implements [store.ExecutionAuditor]. The entries of all IDs of a bucket are in one sorted set.
func (s *Store) AddExecution(ctx context.Context, e store.ExecutionEntry) error {
	id := e.ID.AppendBinary(nil)
	in := s.names.bucketOf(id)
	b := appendText([]byte{evidenceFormat}, id)
	b = append(binary.AppendVarint(b, e.Attempt), byte(e.Decision), byte(e.Origin))
	b = appendText(appendText(b, e.Operation), e.Actor)
	_, err := s.run(ctx, executionScript, []string{in.base + kindRequests, in.base + kindLogged}, rueidis.BinaryString(b))
	return err
}

// decodeExecution decodes an audited request.
func decodeExecution(stored string) (e store.ExecutionEntry, err error) {
	written := decoder{rest: stored}
	e.At = written.time()
	d := evidenceDecoder(written.rest)
	id := d.text()
	e.Attempt, e.Decision, e.Origin = d.int(), store.Decision(d.byte()), store.Origin(d.byte())
	e.Operation, e.Actor = d.text(), d.text()
	if err := d.end(); err != nil {
		return e, err
	}
	e.ID, err = store.ParseID([]byte(id))
	return e, err
}

// ListExecutions implements [store.ExecutionAuditor]. For one ID it scans the entries of its bucket.
func (s *Store) ListExecutions(ctx context.Context, f store.AuditFilter) (chosen []store.ExecutionEntry, err error) {
	if f.ID != (store.ID{}) {
		return s.executionsOf(ctx, f)
	}
	keys := make([]string, len(s.names.buckets))
	for i := range keys {
		keys[i] = s.names.buckets[i].base + kindRequests
	}
	err = s.newest(ctx, keys, &f, f.Page(), func(_, stored string) error {
		e, err := decodeExecution(stored)
		chosen = append(chosen, e)
		return err
	})
	slices.SortStableFunc(chosen, func(a, b store.ExecutionEntry) int { return b.At.Compare(a.At) })
	return chosen[:min(len(chosen), f.Page())], err
}

// executionsOf searches the entries of one ID, some at a time: most belong to other IDs, and there may be millions,
// which the server would send in one reply while all other callers wait.
func (s *Store) executionsOf(ctx context.Context, f store.AuditFilter) (chosen []store.ExecutionEntry, err error) {
	const some = 1000
	keys := []string{s.names.bucketOf(f.ID.AppendBinary(nil)).base + kindRequests}
	for read := some; read == some && len(chosen) < f.Page(); {
		read = 0
		var last time.Time // no two entries of a bucket have the same time
		err := s.newest(ctx, keys, &f, some, func(_, stored string) error {
			e, err := decodeExecution(stored)
			read, last = read+1, e.At
			if f.Chooses(e.ID, e.At) {
				chosen = append(chosen, e)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		f.Until = last
	}
	return chosen[:min(len(chosen), f.Page())], nil
}

// PurgeExecutions implements [store.ExecutionAuditor].
func (s *Store) PurgeExecutions(ctx context.Context, age time.Duration, limit int) (purged int, err error) {
	return s.purgeEntries(ctx, kindLogged, age, limit)
}
