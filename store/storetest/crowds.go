package storetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward/store"
)

// crowds are the groups of events that reach the store together: the events whose names begin with one of the words.
var crowds = []struct {
	name  string
	words []string
}{
	{"reserve", []string{"reserve"}},
	{"extend", []string{"extend"}},
	{"checkpoint", []string{"checkpoint"}},
	{"complete", []string{"complete"}},
	{"release", []string{"release"}},
	{"abandon", []string{"abandon"}},
	{"reject", []string{"reject"}},
	{"all kinds", []string{"reserve", "extend", "checkpoint", "complete", "release", "abandon", "reject"}},
}

// crowdSize is how many events reach the store at once: more than a store puts into its smallest batches.
const crowdSize = 96

// testCrowds sends many events at the same moment, each to a record of its own: a batch of the store then contains
// events that it must refuse and events that it must apply. The result of each event is the same as without the others.
func testCrowds(t *testing.T, h Harness) {
	for _, c := range crowds {
		h.test(t, c.name, func(e *env) {
			events := slices.DeleteFunc(append(reserveActions(), ownerActions()...), func(a action) bool {
				return !slices.ContainsFunc(c.words, func(word string) bool { return strings.HasPrefix(a.name, word) })
			})
			e.crowd(events)
		})
	}
}

// crowdMember is one event of a crowd, and its reply.
type crowdMember struct {
	target
	action string
	event  store.Event
	got    reply
}

// crowd sends events to records in all states that owners can cause.
func (e *env) crowd(events []action) {
	e.Helper()
	states := ownerFixtures()
	free := ids(crowdSize)
	var members []crowdMember
	for i := range states {
		n := crowdSize / len(states)
		for _, built := range states[i].build(e, free[:n]) {
			members = append(members, crowdMember{target: built})
		}
		free = free[n:]
	}
	for i := range members {
		m := &members[i]
		m.before = e.get(m.ID) // a later fixture may have let time pass
		a := events[i%len(events)]
		m.action, m.event = a.name, a.event(m.ID, &m.before)
	}
	from := e.now()
	together(len(members), func(i int) { members[i].got = e.do(members[i].ID, members[i].event) })
	to := e.now()
	for i := range members {
		m := &members[i]
		after, err := e.find(m.ID)
		if err == nil {
			err = e.verify(m.ID, m.before, m.event, m.got, after, from, to)
		}
		if err != nil {
			e.Errorf("S6: in a crowd, %s: %v", m.action, err)
		}
	}
}
