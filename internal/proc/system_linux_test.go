package proc

import "testing"

// TestProcessNamesMayHoldAnything: also what looks like the rest of the line.
func TestProcessNamesMayHoldAnything(t *testing.T) {
	got, err := parseStat("42 (a) Z 1 (b)) S 7 42 42 0")
	if want := (entry{pid: 42, parent: 7, state: 'S'}); err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
