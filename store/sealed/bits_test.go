package sealed

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// evidenceHolder is a store that holds one piece of evidence of each kind, as a test wants it.
type evidenceHolder struct {
	*memory.Store
	late  store.LateCompletion
	event store.ExternalEvent
}

func (h *evidenceHolder) LateCompletions(context.Context, store.ID) ([]store.LateCompletion, error) {
	return []store.LateCompletion{h.late}, nil
}

func (h *evidenceHolder) ExternalEvents(context.Context, store.ExternalEventFilter) ([]store.ExternalEvent, error) {
	return []store.ExternalEvent{h.event}, nil
}

// TestEveryBitOfEvidence: a bit that is flipped anywhere in a sealed message, event or late completion keeps it from
// being opened. TestEveryBit holds the same of records.
func TestEveryBitOfEvidence(t *testing.T) {
	t.Parallel()
	held := &evidenceHolder{Store: memory.New()}
	s, err := New(held, Config{Keys: []Key{{ID: 1, Secret: bytes.Repeat([]byte{1}, secretSize)}}})
	if err != nil {
		t.Fatal(err)
	}
	late := func(header, body []byte) bool {
		held.late = store.LateCompletion{Claim: goldenClaim, Response: store.Response{
			Status: 201, Body: body, Header: []store.HeaderField{{Name: store.SealedField, Value: string(header)}},
		}}
		got, err := s.LateCompletions(t.Context(), goldenClaim.ID)
		return err == nil && !(got[0].Response.NotStored && got[0].Response.Body == nil && got[0].Response.Header == nil)
	}
	values := golden(t, s)
	for name, opens := range map[string]func(value []byte) bool{
		"late-header": func(value []byte) bool { return late(value, values["late-body"]) },
		"late-body":   func(value []byte) bool { return late(values["late-header"], value) },
		"event": func(value []byte) bool {
			held.event = goldenEvent
			held.event.Body = value
			_, err := s.ExternalEvents(t.Context(), store.ExternalEventFilter{})
			return !errors.Is(err, store.ErrUnreadable)
		},
		"message": func(value []byte) bool {
			e := goldenEntry
			e.Headers, e.Payload = nil, value
			s.openEntry(&e)
			return !errors.Is(e.Unreadable, store.ErrUnreadable) || e.Payload != nil || e.Headers != nil
		},
	} {
		value := bytes.Clone(values[name])
		if !opens(value) {
			t.Errorf("%s does not open as it is", name)
		}
		for bit := range len(value) * 8 {
			value[bit/8] ^= 1 << (bit % 8)
			if opens(value) {
				t.Errorf("%s opens with bit %d of %d flipped", name, bit, len(value)*8)
			}
			value[bit/8] ^= 1 << (bit % 8)
		}
	}
}
