package servers

import "testing"

func TestProcessNamesMayHoldAnything(t *testing.T) {
	got, err := parseStat("42 (a) Z 1 (b)) S 7 42 42 0")
	must(t, err)
	if want := (entry{pid: 42, parent: 7, state: 'S'}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
