package outbox

import (
	"time"
)

// laneKey names messages that keep their order.
type laneKey struct{ topic, aggregateType, aggregateID string }

// taken is a message in hand.
type taken struct {
	*Claimed
	lease *heldLease
	// counted says that the store has counted this try: it does so for those that were first.
	counted bool
}

// start delivers what was claimed: messages of one aggregate one after the other, all others side by side.
func (s *session) start(claimed []Claimed, until time.Time) {
	runs := make(map[laneKey][]taken)
	for i := range claimed {
		c := &claimed[i]
		route := s.routes[c.Topic]
		t := taken{Claimed: c, lease: s.hold(route, c, until), counted: true}
		if !c.Ordered() {
			s.deliveries.Go(func() { s.deliverRun(route, []taken{t}) })
			continue
		}
		key := laneKey{c.Topic, c.AggregateType, c.AggregateID}
		t.counted = len(runs[key]) == 0
		runs[key] = append(runs[key], t)
	}
	for key, run := range runs {
		s.deliveries.Go(func() { s.deliverRun(s.routes[key.topic], run) })
	}
}

// deliverRun delivers messages of one aggregate. After one that did not succeed the rest waits. One that was tried before
// goes alone: if it is what kills workers, nothing else is to suffer from it.
func (s *session) deliverRun(route *routeState, run []taken) {
	route.slots <- struct{}{}
	defer func() { <-route.slots }()
	if run[0].Attempts > 1 && len(run) > 1 {
		s.giveBack(route, run[1:], StateBehind)
		run = run[:1]
	}
	for i, t := range run {
		if s.stopping.Load() {
			s.giveBack(route, run[i:], StateReady)
			return
		}
		if !s.deliver(route, t) {
			s.giveBack(route, run[i+1:], StateBehind)
			return
		}
	}
}

// giveBack returns messages that were not begun. That does not count as a try.
func (s *session) giveBack(route *routeState, run []taken, state State) {
	for _, t := range run {
		tries := t.Attempts
		if t.counted {
			tries--
		}
		s.finish.add(finished{taken: t, route: route, ending: Outcome{Lease: t.lease.Lease, State: state, Attempts: tries}})
	}
}
