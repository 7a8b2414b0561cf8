package sqlite

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// TestAnswersInAGroup: the messages of an answer share its fate, also where the group is undone by one of its members
// and the others are run again, and a message that the database refuses is the concern of its own handler alone.
func TestAnswersInAGroup(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	box, err := outbox.New(s, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	inWriter(t, s, func(w *writer) error {
		w.groupTime = time.Hour // a slow machine must not divide the group
		return nil
	})
	letGo := holdWriter(t, s)
	all := runGroup(t, s, []string{"a", "refused", "panics", "spoils", "b"},
		func(ctx context.Context, key string) store.Settlement {
			message := outbox.Message{Topic: "topic", AggregateID: "1", Type: key}
			if _, err := box.AddToAnswer(ctx, message); err != nil {
				t.Errorf("O1: %s: %v", key, err)
			}
			switch key {
			case "refused":
				twice := &outbox.Entry{Message: message, ID: "twice"}
				if err := errors.Join(s.AddToAnswer(ctx, twice), s.AddToAnswer(ctx, twice)); err != nil {
					t.Error(err)
				}
			case "panics":
				panic("on purpose")
			case "spoils":
				return culprits["asks for a rollback"].body(ctx)
			}
			return insertAndCommit(key)(ctx, store.Verdict{})
		}, letGo)
	for _, run := range all {
		switch run.key {
		case "a", "b":
			neighbours(t, s, []*groupRun{run}, "")
			continue
		case "refused":
			if !errors.Is(run.err, store.ErrWorkRefused) || errors.Is(run.err, store.ErrUnavailable) {
				t.Errorf("O1: a message that is refused: %v, want ErrWorkRefused", run.err)
			}
		}
		if wantWhole(t, s, run.key) {
			t.Errorf("O1: %s was executed", run.key)
		}
	}
	if runs := all[0].runs.Load(); runs != 2 {
		t.Errorf("a ran %d times, want 2: the group was not undone", runs)
	}
	found, err := s.Messages(t.Context(), outbox.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for i := range found {
		types = append(types, found[i].Type)
	}
	if !slices.Equal(types, []string{"a", "b"}) {
		t.Errorf("O1: the messages are %q, want those of a and b, once", types)
	}
}
