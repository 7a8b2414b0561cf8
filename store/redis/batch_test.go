package redis

import "testing"

// TestLanes lets batches return in any order: a smaller one is not sent beside a larger one, and no call is left when
// the last one has returned.
func TestLanes(t *testing.T) {
	t.Parallel()
	s := &sender{lanes: 2, sent: 64}
	wait := func(n int) {
		for range n {
			s.queue = append(s.queue, &call{})
		}
	}
	wait(laneWorth)
	if calls := s.take(24); calls != nil || s.lanes != 1 || s.sent != 40 {
		t.Fatalf("beside a batch of 40 goes one of %d (%d lanes, %d sent)", len(calls), s.lanes, s.sent)
	}
	if s.worthLane(s.lanes) {
		t.Error("a batch of 24 is worth a lane beside one of 40")
	}
	wait(16)
	if !s.worthLane(s.lanes) {
		t.Error("a batch of 40 is not worth a lane beside one of 40")
	}
	s.lanes++
	if calls := s.take(0); len(calls) != 40 || s.sent != 80 {
		t.Fatalf("a batch of %d goes out (%d sent), want 40", len(calls), s.sent)
	}
	wait(1)
	if calls := s.take(40); calls != nil || s.lanes != 1 {
		t.Fatalf("a call goes by itself beside a batch of 40")
	}
	if calls := s.take(40); len(calls) != 1 {
		t.Fatal("a call is left behind")
	}
	if calls := s.take(1); calls != nil || s.lanes != 0 || s.sent != 0 || len(s.queue) != 0 {
		t.Fatalf("at the end there are %d lanes, %d calls sent and %d waiting", s.lanes, s.sent, len(s.queue))
	}
}
