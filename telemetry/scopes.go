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

// topScopes counts by scope: each of the busiest scopes separately, and all other scopes together. What it shows is
// bounded, whatever callers do: at most limit scopes at a time and, once all places are taken, at most one new scope in
// each [promotePause]. No request is lost: each request is shown once, in the series of its scope or in the series of
// the others. When a scope loses its place its series ends, and only its requests that were not shown yet are added to
// the others, so that the rate of the others does not jump by requests that another series has shown before.
//
// The busiest scopes are found by a Misra-Gries summary of the scopes without a place. It never counts more requests of
// a scope than there were, so that a scope with a single request does not look busy, however many such scopes there
// are.
type topScopes struct {
	limit   int
	columns int
	now     func() time.Time

	mu       sync.Mutex
	placed   map[string]*scopeCounts
	waiting  map[string]int64 // the recent requests of scopes without a place, or fewer
	others   []int64
	promoted time.Time // when a promotion was last tried, or the first scope had to wait
	halved   time.Time // when recent counts were last halved
}

// scopeCounts holds the counts of a scope that has a place.
type scopeCounts struct {
	counts []int64
	shown  []int64 // the part of the counts that was shown
	begun  bool    // the scope was shown with zeros
	recent int64   // halved regularly, so that old requests do not keep a place
}

const (
	// promotePause is the shortest time between two promotions.
	promotePause = 10 * time.Second
	// halveEvery is the time after which the recent counts are halved.
	halveEvery = time.Minute
	// maxWaiting is the number of scopes without a place that are counted. A scope with more than one in maxWaiting of
	// all requests of such scopes is noticed.
	maxWaiting = 512
	// maxScopeLabel is the largest number of bytes of a scope's name that is shown.
	maxScopeLabel = 120
)

func newTopScopes(limit, columns int) *topScopes {
	return &topScopes{
		limit: limit, columns: columns, now: time.Now, others: make([]int64, columns),
		placed: make(map[string]*scopeCounts), waiting: make(map[string]int64),
	}
}

// add counts one request in a column of a scope.
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

// place gives a free place to a scope. If there is none, it counts the scope, and promotes the busiest scope without a
// place if a promotion is due. It returns nil if the scope has no place then.
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

// watch counts a request of a scope without a place. If there is no room for a new scope, one request is taken from
// each counted scope instead, as Misra-Gries requires.
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

// halve halves the recent counts, so that old requests count for less.
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

// promote gives the place of the quietest scope to the busiest scope without a place, if that scope had more than twice
// as many recent requests. Two scopes that are about equally busy do not change places all the time.
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

// each calls f for each scope that has a place, and once for all others together. A scope begins with zeros, because
// Prometheus does not take the first value of a series for an increase, and a scope with a sudden load is often new.
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

// scopeLabel returns the label of a scope. It distinguishes a scope named "other" from the sum of the others by quotes,
// and scopes whose names cannot be shown completely by a hash. If two scopes shared a series, the series would fall
// when one of them loses its place: Prometheus would take that for a restart, and the rest for an increase.
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

// scopes registers a counter by scope.
func (b *builder) scopes(s *topScopes, name, help string) {
	tally := b.tally(name, help, "scope")
	b.callback(func(_ context.Context, o metric.Observer) error {
		s.each(func(scope string, counts []int64) {
			o.ObserveInt64(tally, counts[0], metric.WithAttributes(attribute.String("scope", scope)))
		})
		return nil
	}, tally)
}

// decisionsByScope registers the counter of all decisions by scope.
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
