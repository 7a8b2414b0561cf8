package model

import (
	"maps"
	"sync"
	"testing"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/store"
)

var (
	twice        = []spec{{1, reserved}, {1, reserved}}
	andOther     = []spec{{1, reserved}, {1, reserved}, {2, reserved}}
	transactions = []spec{{1, transactional}, {1, transactional}, {2, transactional}}
	mixed        = []spec{{1, transactional}, {1, reserved}, {2, reserved}}
)

// depth is how many attempts the larger searches go through. One attempt fewer is a tenth of the states.
var depth = nightly.Either[int8](4, 3)

// truths are the scenarios in which the rules as they are must hold.
var truths = []scenario{
	{name: "reserved, three requests", requests: andOther, attempts: depth - 1},
	{name: "reserved, soft expiry", requests: twice, attempts: depth, soft: true},
	{name: "reserved, the clock steps back", requests: twice, attempts: depth, back: true},
	{name: "reserved, an operator busts", requests: twice, attempts: depth - 1, bust: true, soft: true},
	{name: "resumed, the provider dedups", requests: twice, attempts: depth, policy: store.LostResume, dedups: true},
	{name: "resumed, a person ends it", requests: twice, attempts: depth - 1, policy: store.LostResume, dedups: true, ends: true},
	{name: "transactional", requests: transactions, attempts: depth},
	{name: "transactional and reserved on one key", requests: mixed, attempts: depth - 1},
}

// TestRulesHold walks everything that can happen, and finds nothing.
func TestRulesHold(t *testing.T) {
	t.Parallel()
	var (
		mu    sync.Mutex
		total = result{fired: make(map[action]int), moved: make(map[transition]int)}
	)
	t.Run("scenarios", func(t *testing.T) {
		for _, s := range truths {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				found := s.search()
				t.Log(found.String())
				if found.breach != 0 {
					t.Fail()
				}
				mu.Lock()
				defer mu.Unlock()
				total.add(&found)
			})
		}
	})
	t.Log(total.String())
	checkFaults(t, total.fired)
	checkTable(t, total.moved)
}

func (r *result) add(other *result) {
	r.states += other.states
	r.breach |= other.breach
	r.steps += other.steps
	sum(r.fired, other.fired)
	sum(r.moved, other.moved)
}

func sum[K comparable](into, from map[K]int) {
	for k, n := range maps.All(from) {
		into[k] += n
	}
}

// TestMutantsAreFound holds the checker to having teeth: each deliberately broken variant is caught.
func TestMutantsAreFound(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for _, watch := range m.breaks {
				m.watch = watch
				found := m.search()
				t.Log(found.String())
				if found.breach != watch {
					t.Errorf("the search did not find %s violated", watch)
				}
			}
		})
	}
}

// TestEveryInvariantHasTeeth makes sure that no invariant is checked in vain.
func TestEveryInvariantHasTeeth(t *testing.T) {
	t.Parallel()
	var broken breaches
	for _, m := range mutants {
		for _, b := range m.breaks {
			broken |= b
		}
	}
	if missing := allInvariants &^ broken; missing != 0 {
		t.Errorf("no mutant breaks %s", missing)
	}
}

// TestFenceAloneIsNotEnough shows why a lost owner's operation is unknown by default: fencing the row does not fence
// the effect. Only a provider that dedups by the downstream key makes it safe to resume; the scenario with one is among
// those in which the rules hold.
func TestFenceAloneIsNotEnough(t *testing.T) {
	t.Parallel()
	s := scenario{requests: twice, attempts: 3, policy: store.LostResume, watch: i1}
	found := s.search()
	t.Log(found.String())
	if found.breach != i1 {
		t.Error("resuming without a downstream key was found harmless")
	}
}

// TestResumedOwnerMustNotRelease shows that an owner that took over cannot say "nothing was done": it does not know
// what the one before it did, or may still do. It abandons instead.
func TestResumedOwnerMustNotRelease(t *testing.T) {
	t.Parallel()
	for _, watch := range []breaches{i4, i5} {
		s := scenario{requests: twice, attempts: 3, policy: store.LostResume, dedups: true, watch: watch}
		s.rules.waryRelease = true
		found := s.search()
		t.Log(found.String())
		if found.breach != watch {
			t.Errorf("a release by a resumed owner did not violate %s", watch)
		}
	}
}
