package limit

import (
	"testing"
	"time"
)

// TestClockThatGoesBack: a clock that jumps back gives nothing away, and takes nothing that was not used.
func TestClockThatGoesBack(t *testing.T) {
	t.Parallel()
	rate := Rate{Limit: 10, Window: 10 * time.Second}
	var m meter
	use := func(now time.Duration) (n int) {
		for m.wait(rate, now) == 0 {
			m.add(rate)
			n++
		}
		return n
	}
	if n := use(time.Hour); n != 10 {
		t.Fatalf("%d at first", n)
	}
	if n := use(time.Minute); n != 0 {
		t.Errorf("%d more when the clock went back", n)
	}
	if n := use(time.Minute + 3*time.Second); n != 3 {
		t.Errorf("%d came back in 3 seconds behind that", n)
	}
	if n := use(1000 * time.Hour); n != 10 {
		t.Errorf("%d after a jump forward, want no more than the limit", n)
	}
}
