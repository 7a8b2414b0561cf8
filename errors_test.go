package onceward_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

func TestErrorsSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		is   error
		says []string
	}{
		{&store.FencedError{Op: "complete", Attempt: 7, Current: 9, State: store.StateUnknown}, store.ErrFenced, []string{"complete", "7", "9", "unknown"}},
		{&store.FencedError{Op: "extend", Attempt: 7}, store.ErrFenced, []string{"extend", "7", "no record"}},
		{&store.UnreadableError{Version: 3, Reason: "it is cut off"}, store.ErrUnreadable, []string{"3", "cut off"}},
		{&onceward.InProgressError{RetryAfter: time.Second}, onceward.ErrInProgress, []string{"in progress", "1s"}},
		{&onceward.StoredFailureError{Message: "declined"}, onceward.ErrStoredFailure, []string{"declined"}},
	} {
		if !errors.Is(test.err, test.is) || errors.Is(test.err, onceward.ErrMismatch) {
			t.Errorf("%v is not what it is, or is everything", test.err)
		}
		for _, text := range test.says {
			if !strings.Contains(test.err.Error(), text) {
				t.Errorf("%q does not say %q", test.err, text)
			}
		}
	}
}
