package world

import "testing"

// TestTagSlot has slots that Redis computed.
func TestTagSlot(t *testing.T) {
	t.Parallel()
	for tag, want := range map[string]int{"123456789": 12739, "foo": 12182, "": 0} {
		if got := tagSlot(tag); got != want {
			t.Errorf("the slot of %q is %d, want %d", tag, got, want)
		}
	}
}
