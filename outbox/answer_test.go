package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/onceward/onceward/outbox"
)

// answers is a store that keeps what is added to answers, and nothing else.
type answers struct {
	outbox.Store
	added []outbox.Entry
	err   error
}

// AddToAnswer implements [outbox.AnswerStore].
func (a *answers) AddToAnswer(_ context.Context, e *outbox.Entry) error {
	if a.err == nil {
		a.added = append(a.added, *e)
	}
	return a.err
}

func aboutOrder(kind string) outbox.Message {
	return outbox.Message{Topic: "orders", AggregateType: "order", AggregateID: "1", Type: kind}
}

// TestAddToAnswer: the store gets a complete entry, and the caller its ID or why it was not added.
func TestAddToAnswer(t *testing.T) {
	t.Parallel()
	store := new(answers)
	box, err := outbox.New(store, outbox.Config{Source: "https://shop.example"})
	if err != nil {
		t.Fatal(err)
	}
	id, err := box.AddToAnswer(t.Context(), aboutOrder("order.placed"))
	if err != nil || len(store.added) != 1 {
		t.Fatalf("%d messages were added, %v", len(store.added), err)
	}
	if e := store.added[0]; e.ID != id || id == "" || e.DownstreamKey == "" || e.Source != "https://shop.example" || e.Subject != "1" {
		t.Errorf("added was %+v", e)
	}
	if _, err := box.AddToAnswer(t.Context(), aboutOrder("")); err == nil || !strings.Contains(err.Error(), "Message.Type is missing") || len(store.added) != 1 {
		t.Errorf("a message that could not be delivered: %v", err)
	}
	store.err = outbox.ErrNoAnswer
	if id, err := box.AddToAnswer(t.Context(), aboutOrder("order.placed")); !errors.Is(err, outbox.ErrNoAnswer) || id != "" {
		t.Errorf("where there is no answer: %q, %v", id, err)
	}
}

// TestStoreWithoutAnswers: where the store cannot add to an answer, the error says so.
func TestStoreWithoutAnswers(t *testing.T) {
	t.Parallel()
	box, err := outbox.New(struct{ outbox.Store }{}, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := box.AddToAnswer(t.Context(), aboutOrder("order.placed")); !errors.Is(err, outbox.ErrNoAnswer) || !strings.Contains(err.Error(), "cannot do that") {
		t.Errorf("got %v", err)
	}
}

// TestAnswerSize: an answer takes so many messages and so many bytes along, and always the largest message alone.
func TestAnswerSize(t *testing.T) {
	t.Parallel()
	entry := func(payload, header int) *outbox.Entry {
		e := &outbox.Entry{Message: aboutOrder("order.placed")}
		e.Payload, e.Headers = make([]byte, payload), map[string]string{"h": strings.Repeat("x", header)}
		return e
	}
	for _, test := range []struct {
		name string
		each *outbox.Entry
		want int
	}{
		{"many small ones", entry(0, 0), outbox.MaxAnswerMessages},
		{"the largest", entry(outbox.MaxPayload, 8<<10-1), 1},
		{"halves", entry(outbox.MaxPayload/2, 100), 2},
		{"large headers", entry(outbox.MaxPayload/2, 4<<10), 1},
	} {
		var size outbox.AnswerSize
		added := 0
		for size.Add(test.each) == nil {
			added++
		}
		if err := size.Add(test.each); added != test.want || !errors.Is(err, outbox.ErrAnswerFull) {
			t.Errorf("%s: %d were added, then %v, want %d", test.name, added, err, test.want)
		}
	}
}
