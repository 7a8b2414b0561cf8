package node

import (
	"path/filepath"
	"testing"
	"time"
)

// TestClockIsSetForAll: an offset that one process writes is seen by clocks that others have opened before.
func TestClockIsSetForAll(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "clock")
	if err := SetClock(path, 0); err != nil {
		t.Fatal(err)
	}
	clock, err := openClock(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []time.Duration{time.Hour, -time.Hour, 0} {
		if err := SetClock(path, offset); err != nil {
			t.Fatal(err)
		}
		if off := time.Until(clock()) - offset; off.Abs() > time.Minute {
			t.Errorf("with an offset of %s the clock is %s away from that", offset, off)
		}
	}
	if _, err := openClock(path + " that is not there"); err == nil {
		t.Error("a clock without a file was opened")
	}
}
