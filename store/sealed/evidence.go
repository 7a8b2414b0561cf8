package sealed

import (
	"context"
	"time"

	"github.com/onceward/onceward/store"
)

// AddLateCompletion implements [store.LateCompletionKeeper].
func (s *Store) AddLateCompletion(ctx context.Context, late store.LateCompletion) error {
	var err error
	late.Response, err = s.sealResponse(place{claim: late.Claim, late: true}, s.redacted(late.Response))
	if err != nil {
		return err
	}
	return s.Store.AddLateCompletion(ctx, late)
}

// LateCompletions implements [store.LateCompletionKeeper]. A completion that cannot be opened does not hide the others:
// it has its status only, like an answer that was not stored.
func (s *Store) LateCompletions(ctx context.Context, id store.ID) ([]store.LateCompletion, error) {
	all, err := s.Store.LateCompletions(ctx, id)
	for i := range all {
		late := &all[i]
		if s.openResponse(place{claim: late.Claim, late: true}, &late.Response, false) != nil {
			late.Response = store.Response{Status: late.Response.Status, NotStored: true}
		}
	}
	return all, err
}

// AddExternalEvent implements [store.ExternalEventKeeper].
func (s *Store) AddExternalEvent(ctx context.Context, e store.ExternalEvent) (bool, error) {
	if !s.openOnly {
		body, err := s.ring.seal(eventBinding(&e), e.Body)
		if err != nil {
			return false, err
		}
		e.Body = body
	}
	return s.Store.AddExternalEvent(ctx, e)
}

// eventBinding returns a binding that covers the fields of an event that its sender has set, except the body, as stores
// keep them: stores that count microseconds return the Unix epoch as the zero time.
func eventBinding(e *store.ExternalEvent) binding {
	scope := e.Scope
	if e.AnyScope {
		scope = ""
	}
	at := e.At.Truncate(time.Microsecond).UnixMicro()
	if at == 0 {
		at = time.Time{}.UnixMicro()
	}
	return binding{
		kind: kindEvent, parts: []string{e.Source, yes(e.AnyScope), scope, e.EventID, e.Subject, number(at)},
	}
}

// ExternalEvents implements [store.ExternalEventKeeper]. An event that cannot be opened is an error: without it, a
// decision about a record may be wrong.
func (s *Store) ExternalEvents(ctx context.Context, f store.ExternalEventFilter) ([]store.ExternalEvent, error) {
	events, err := s.Store.ExternalEvents(ctx, f)
	if err != nil {
		return nil, err
	}
	for i := range events {
		e := &events[i]
		if store.IsSealed(e.Body) {
			e.Body, _, err = s.ring.open(eventBinding(e), e.Body)
		} else {
			err = s.plain(e.Body)
		}
		if err != nil {
			return nil, err
		}
	}
	return events, nil
}
