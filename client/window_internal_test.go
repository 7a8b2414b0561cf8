package client

import (
	"testing"
	"time"
	"unsafe"
)

// TestTheWindowClosesWhileTheMachineSleeps: then the clock that times are compared by stands still, and the one on the
// wall goes on; when that is set, it is the other way round.
func TestTheWindowClosesWhileTheMachineSleeps(t *testing.T) {
	t.Parallel()
	op := &operation{
		Context: t.Context(), transport: &Transport{config: Config{Timeout: 100 * time.Hour}}, began: time.Now(),
	}
	for name, each := range map[string]struct {
		until time.Time
		want  error
	}{
		"both are before it":    {op.began.Add(time.Hour), nil},
		"both are past it":      {op.began.Add(-time.Hour), ErrWindowClosed},
		"the machine has slept": {slept(t, op.began.Add(time.Hour), -30*time.Hour), ErrWindowClosed},
		"the wall was set back": {slept(t, op.began.Add(-time.Hour), 30*time.Hour), ErrWindowClosed},
	} {
		op.until = each.until
		if err := op.timeFor(0); err != each.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// slept is a time of which the reading on the wall is another one.
func slept(t *testing.T, at time.Time, wall time.Duration) time.Time {
	t.Helper()
	made := at.Add(wall)
	(*struct {
		wall uint64
		ext  int64 // the count of the system
		loc  *time.Location
	})(unsafe.Pointer(&made)).ext -= int64(wall)
	if made.Sub(at) != 0 || made.Round(0).Sub(at) != wall {
		t.Fatal("this version of Go keeps its times in another way: the test has to make them so")
	}
	return made
}
