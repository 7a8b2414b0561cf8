package sealed

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// SealEntry implements [outbox.Sealer]: it replaces the payload by one sealed value of headers and payload.
func (s *Store) SealEntry(e *outbox.Entry) error {
	if s.openOnly {
		return nil
	}
	headers := make([]store.HeaderField, 0, len(e.Headers))
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		headers = append(headers, store.HeaderField{Name: name, Value: e.Headers[name]})
	}
	encoded := store.AppendHeader(nil, headers)
	content := append([]byte(number(int64(len(encoded)))), encoded...)
	value, err := s.ring.seal(messageBinding(e), append(content, e.Payload...))
	if err != nil {
		return err
	}
	e.Seal(value)
	return nil
}

// messageBinding returns a binding that covers everything that is delivered, and the origin of the message.
func messageBinding(e *outbox.Entry) binding {
	return binding{kind: kindMessage, parts: []string{
		e.ID, e.Origin.Scope, e.Origin.Key, number(e.OriginAttempt), e.DownstreamKey, e.Topic, e.AggregateType,
		e.AggregateID, e.Type, e.ContentType, e.Source, e.Subject, e.Step,
	}}
}

// openEntry opens a message in place, or sets the reason why it is unreadable.
func (s *Store) openEntry(e *outbox.Entry) {
	answer, err := s.openAnswer(e)
	if err = errors.Join(s.opens(e), err); err != nil {
		e.Payload, e.Headers, e.Unreadable = nil, nil, err
	}
	e.Answer = answer
}

// answerBinding returns the binding of an answer to its message.
func answerBinding(id string) binding { return binding{kind: kindAnswer, parts: []string{id}} }

// sealAnswer seals an answer for the message with that ID.
func (s *Store) sealAnswer(id string, answer []byte) ([]byte, error) {
	if s.openOnly || len(answer) == 0 {
		return answer, nil
	}
	return s.ring.seal(answerBinding(id), answer)
}

func (s *Store) openAnswer(e *outbox.Entry) ([]byte, error) {
	switch {
	case len(e.Answer) == 0:
		return nil, nil
	case !store.IsSealed(e.Answer):
		return e.Answer, s.plain(e.Answer)
	}
	answer, _, err := s.ring.open(answerBinding(e.ID), e.Answer)
	return answer, err
}

// RecordEffect implements [outbox.Store].
func (s *Store) RecordEffect(ctx context.Context, l outbox.Lease, providerID string, answer []byte) error {
	answer, err := s.sealAnswer(l.ID, answer)
	if err != nil {
		return err
	}
	return s.Store.RecordEffect(ctx, l, providerID, answer)
}

// ReplayMessage implements [outbox.Store].
func (s *Store) ReplayMessage(ctx context.Context, id string, answer []byte) error {
	answer, err := s.sealAnswer(id, answer)
	if err != nil {
		return err
	}
	return s.Store.ReplayMessage(ctx, id, answer)
}

func (s *Store) opens(e *outbox.Entry) error {
	if !store.IsSealed(e.Payload) {
		return s.plain(e.Payload)
	}
	content, _, err := s.ring.open(messageBinding(e), e.Payload)
	if err != nil {
		return err
	}
	if len(e.Headers) > 0 {
		return errBroken // they were added after sealing
	}
	headers, payload, err := splitMessage(content)
	if err != nil {
		return err
	}
	e.Payload = payload
	if len(headers) > 0 {
		e.Headers = make(map[string]string, len(headers))
	}
	for _, field := range headers {
		e.Headers[field.Name] = field.Value
	}
	return nil
}

// add seals an entry and passes it to hand. An entry that [outbox.Outbox.Entry] has already sealed is passed as it is.
// It is recognised by opening it: a payload that only looks sealed is sealed too.
func (s *Store) add(e *outbox.Entry, hand func(*outbox.Entry) error) error {
	if probe := *e; store.IsSealed(e.Payload) && s.opens(&probe) == nil {
		return hand(e)
	}
	sealed := *e
	if err := s.SealEntry(&sealed); err != nil {
		return err
	}
	err := hand(&sealed)
	e.State, e.Due, e.CreatedAt = sealed.State, sealed.Due, sealed.CreatedAt // the store may have set them
	return err
}

// AddMessage implements [outbox.Store].
func (s *Store) AddMessage(ctx context.Context, tx *sql.Tx, e *outbox.Entry) error {
	return s.add(e, func(e *outbox.Entry) error { return s.Store.AddMessage(ctx, tx, e) })
}

// AddToAnswer implements [outbox.AnswerStore].
func (s *Store) AddToAnswer(ctx context.Context, e *outbox.Entry) error {
	return s.add(e, func(e *outbox.Entry) error { return s.Store.AddToAnswer(ctx, e) })
}

// ClaimMessages implements [outbox.Store].
func (s *Store) ClaimMessages(
	ctx context.Context, requests []outbox.ClaimRequest, lease time.Duration,
) ([]outbox.Claimed, error) {
	claimed, err := s.Store.ClaimMessages(ctx, requests, lease)
	for i := range claimed {
		s.openEntry(&claimed[i].Entry)
	}
	return claimed, err
}

// Messages implements [outbox.Store].
func (s *Store) Messages(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	entries, err := s.Store.Messages(ctx, f)
	for i := range entries {
		s.openEntry(&entries[i])
	}
	return entries, err
}

// splitMessage separates the headers and the payload that SealEntry joined.
func splitMessage(content []byte) (headers []store.HeaderField, payload []byte, err error) {
	if len(content) < 8 {
		return nil, nil, errBroken
	}
	size, content := binary.BigEndian.Uint64(content), content[8:]
	if size > uint64(len(content)) {
		return nil, nil, errBroken
	}
	if headers, err = store.DecodeHeader(content[:size]); err != nil {
		return nil, nil, unreadable(err.Error())
	}
	return headers, content[size:], nil
}
