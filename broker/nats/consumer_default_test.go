package nats

import "testing"

// Messages that wait here for a worker are not asked for in such numbers that their AckWait passes.
func TestBufferGrowsWithWorkers(t *testing.T) {
	t.Parallel()
	for _, each := range []struct{ workers, buffer, want int }{{0, 0, 2}, {5, 0, 10}, {5, 7, 7}} {
		if got := (ConsumerConfig{Workers: each.workers, Buffer: each.buffer}).withDefaults().Buffer; got != each.want {
			t.Errorf("%+v: %d", each, got)
		}
	}
}
