package telemetry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// topScopes counts by scope, each of the busiest ones for itself and all others together. What it shows is bounded
// whatever callers do: so many scopes at a time and, once all places are taken, no more than one new name in
// [promotePause]. Nothing is lost: each request is shown once, in the series of its scope or in that of the others. A
// scope that gives up its place takes its series along, and only what was not shown of it yet goes to the others: their
// rate does not jump by what another series has told before.
//
// Which scopes are the busiest is found out by a Misra-Gries summary of those without a place: what it counts of a
// scope is never more than there was, so that one that comes once does not look busy, however many such scopes there
// are.
type topScopes struct {
	limit   int
	columns int
	now     func() time.Time

	mu       sync.Mutex
	placed   map[string]*scopeCounts
	waiting  map[string]int64 // how often scopes without a place came recently, at least
	others   []int64
	promoted time.Time // when a scope last took the place of another, or the first one had to wait
	halved   time.Time // when recent counts were last halved
}

// scopeCounts is what is counted of one scope that has a place.
type scopeCounts struct {
	counts []int64
	shown  []int64 // what of the counts was shown
	begun  bool    // it was shown, as zero
	recent int64   // halved now and then, so that a place is not kept by what was long ago
}

const (
	// promotePause is the time between two scopes that take the place of another one.
	promotePause = 10 * time.Second
	// halveEvery is when what is recent is halved.
	halveEvery = time.Minute
	// maxWaiting bounds how many scopes without a place are watched: one that makes more than its share of all requests
	// of such scopes, which is one in so many, is noticed.
	maxWaiting = 512
	// maxScopeLabel is how much of a scope's name is shown.
	maxScopeLabel = 120
)

func newTopScopes(limit, columns int) *topScopes {
	return &topScopes{
		limit: limit, columns: columns, now: time.Now, others: make([]int64, columns),
		placed: make(map[string]*scopeCounts), waiting: make(map[string]int64),
	}
}

// add counts one in a column of a scope.
func (s *topScopes) add(scope string, column int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.placed[scope]
	if in == nil {
		in = s.place(scope)
	}
	if in == nil {
		s.others[column]++
		return
	}
	in.counts[column]++
	in.recent++
}

// place gives a scope a place if one is free, or if one is due to be given to another scope and this one is it. It
// returns nil if the scope has none.
func (s *topScopes) place(scope string) *scopeCounts {
	if len(s.placed) < s.limit {
		return s.give(strings.Clone(scope))
	}
	now := s.now()
	if s.promoted.IsZero() {
		s.promoted, s.halved = now, now
	}
	if now.Sub(s.halved) >= halveEvery {
		s.halve()
		s.halved = now
	}
	s.watch(scope)
	if now.Sub(s.promoted) >= promotePause {
		s.promoted = now
		s.promote()
	}
	return s.placed[scope]
}

func (s *topScopes) give(scope string) *scopeCounts {
	in := &scopeCounts{counts: make([]int64, s.columns), shown: make([]int64, s.columns)}
	s.placed[scope] = in
	return in
}

// watch counts a scope without a place. A new one for which there is no room takes one from each that is watched: that
// is paid for by what they came.
func (s *topScopes) watch(scope string) {
	if n, watched := s.waiting[scope]; watched {
		s.waiting[scope] = n + 1
		return
	}
	if len(s.waiting) < maxWaiting {
		s.waiting[strings.Clone(scope)] = 1
		return
	}
	for name, n := range s.waiting {
		if n == 1 {
			delete(s.waiting, name)
		} else {
			s.waiting[name] = n - 1
		}
	}
}

// halve lets what is long ago count for less.
func (s *topScopes) halve() {
	for _, in := range s.placed {
		in.recent /= 2
	}
	for name, n := range s.waiting {
		if n < 2 {
			delete(s.waiting, name)
		} else {
			s.waiting[name] = n / 2
		}
	}
}

// promote gives the place of the quietest scope to the busiest one that has none, if that came at least twice as often,
// so that two that are about as busy do not change all the time.
func (s *topScopes) promote() {
	var busiest, quietest string
	for name, n := range s.waiting {
		if busiest == "" || n > s.waiting[busiest] {
			busiest = name
		}
	}
	for name, in := range s.placed {
		if quietest == "" || in.recent < s.placed[quietest].recent {
			quietest = name
		}
	}
	out := s.placed[quietest]
	if s.waiting[busiest] < 2 || s.waiting[busiest] <= 2*out.recent {
		return
	}
	for i, n := range out.counts {
		s.others[i] += n - out.shown[i]
	}
	delete(s.placed, quietest)
	s.give(busiest).recent = s.waiting[busiest]
	delete(s.waiting, busiest)
}

// each calls f for each scope that has a place, and for the others together. A scope begins with zeros: what Prometheus
// sees first of a series is no growth, and a scope that spikes often is new.
func (s *topScopes) each(f func(scope string, counts []int64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, in := range s.placed {
		if in.begun {
			copy(in.shown, in.counts)
		}
		in.begun = true
		f(scopeLabel(name), in.shown)
	}
	f(other, s.others)
}

// scopeLabel is what a scope is shown as. One that is called like the sum of the others is told from it, and so are two
// that are not shown as they are: one series for both would fall back when one of them gives up its place, which
// Prometheus takes for a restart, and all that is left for growth.
func scopeLabel(scope string) string {
	switch {
	case scope == other:
		return `"` + other + `"`
	case len(scope) <= maxScopeLabel && utf8.ValidString(scope):
		return scope
	}
	sum := sha256.Sum256([]byte(scope))
	shown := strings.ToValidUTF8(scope[:min(len(scope), maxScopeLabel)], "\uFFFD")
	return shown + "…" + hex.EncodeToString(sum[:4])
}

// scopes shows a count by scope.
func (b *builder) scopes(s *topScopes, name, help string) {
	tally := b.tally(name, help, "scope")
	b.callback(func(_ context.Context, o metric.Observer) error {
		s.each(func(scope string, counts []int64) {
			o.ObserveInt64(tally, counts[0], metric.WithAttributes(attribute.String("scope", scope)))
		})
		return nil
	}, tally)
}

// decisionsByScope shows all decisions by scope.
func (b *builder) decisionsByScope(s *topScopes) {
	tally := b.tally("onceward_scope_reservations",
		"Reservations by scope, if Config.ScopeLabels is set.", "scope", "decision")
	b.callback(func(_ context.Context, o metric.Observer) error {
		s.each(func(scope string, counts []int64) {
			for i, n := range counts {
				o.ObserveInt64(tally, n, metric.WithAttributes(
					attribute.String("scope", scope), attribute.String("decision", decisions[i])))
			}
		})
		return nil
	}, tally)
}
