package telemetry

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/nightly"
)

// shownBy adds up what a reader has seen of each series, as Prometheus does: by how much it grew.
type shownBy struct {
	last  map[string]int64
	total int64
	names map[string]bool
}

func (r *shownBy) read(s *topScopes) (series int) {
	now := make(map[string]int64)
	s.each(func(scope string, counts []int64) { now[scope] = counts[0] })
	for name, n := range now {
		if last, ok := r.last[name]; ok && last <= n {
			n -= last
		}
		r.total += n
		r.names[name] = true
	}
	r.last = now
	return len(now)
}

// TestScopesAreBounded holds that a tenant who makes a million scopes neither makes a million series nor hides
// anything: what is shown is bounded at all times, in the long run too, busy scopes keep their places, and all is
// counted.
func TestScopesAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	s := newTopScopes(10, 1)
	s.now = func() time.Time { return now }
	reader := &shownBy{last: make(map[string]int64), names: make(map[string]bool)}
	const busy, during = 5, 100 * time.Second
	scopes := nightly.Either(1_000_000, 100_000)
	added := int64(0)
	for i := range scopes {
		for range 1 + i%10/8*2 { // most once, some three times
			s.add("hostile "+strconv.Itoa(i), 0)
			added++
		}
		if i%10 == 0 {
			s.add(fmt.Sprint("busy ", i/10%busy), 0)
			added++
		}
		now = now.Add(during / time.Duration(scopes))
		if i%(scopes/20) == 0 {
			if series := reader.read(s); series > 11 {
				t.Fatalf("%d series are shown, and 11 are allowed", series)
			}
		}
	}
	reader.read(s)
	reader.read(s) // a series begins at zero
	if reader.total != added {
		t.Errorf("%d were counted, and %d shown", added, reader.total)
	}
	if most := 11 + int(during/promotePause); len(reader.names) > most {
		t.Errorf("%d names were shown in %s, and %d are allowed", len(reader.names), during, most)
	}
	for i := range busy {
		if _, ok := reader.last[fmt.Sprint("busy ", i)]; !ok {
			t.Errorf("a busy scope has no series of its own: %v", reader.last)
		}
	}
	if len(s.waiting) > maxWaiting {
		t.Errorf("%d scopes are watched", len(s.waiting))
	}
}

// TestABusyScopeTakesAPlace holds that what spikes now is seen, whatever was busy before.
func TestABusyScopeTakesAPlace(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	s := newTopScopes(2, 1)
	s.now = func() time.Time { return now }
	reader := &shownBy{last: make(map[string]int64), names: make(map[string]bool)}
	for range 1000 {
		s.add("a", 0)
		s.add("b", 0)
	}
	reader.read(s)
	reader.read(s) // a series begins at zero
	s.add("b", 0)  // not shown yet when it loses its place
	for range 20 {
		now = now.Add(halveEvery)
		for range 10 {
			s.add("a", 0)
			s.add("new", 0)
		}
	}
	reader.read(s)
	reader.read(s)
	if _, ok := reader.last["new"]; !ok || reader.total != 2001+400 {
		t.Errorf("shown %v, %d in all", reader.last, reader.total)
	}
}

func TestScopeLabels(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]string{
		"tenant": "tenant", "other": `"other"`, "\xff": "\uFFFD…a8100ae6", "": "",
	} {
		if got := scopeLabel(scope); got != want {
			t.Errorf("%q is shown as %q", scope, got)
		}
	}
	long := strings.Repeat("x", maxScopeLabel)
	labels := make(map[string]bool)
	for _, scope := range []string{long, long + "a", long + "b", "\xff", "\xfe"} {
		labels[scopeLabel(scope)] = true
	}
	if len(labels) != 5 {
		t.Errorf("five scopes are shown as %v", labels)
	}
}

// TestNamesBeyondTheLimitCostNothing: they come on the path of requests, and may be many.
func TestNamesBeyondTheLimitCostNothing(t *testing.T) {
	n := new(names)
	for i := range maxNames {
		n.name(strconv.Itoa(i))
	}
	if allocs := testing.AllocsPerRun(100, func() {
		if got := n.name("one more"); got != other {
			t.Errorf("it is called %q", got)
		}
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
