package provider

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
)

// script holds the current rules, and the gates at which named faults wait.
type script struct {
	mu    sync.Mutex
	rules []*armedRule
	draw  *rand.Rand
	gates map[string]*gate
	// strikes outlives the rules: it counts from the start.
	strikes map[Kind]int
}

type armedRule struct {
	Rule
	struck int
}

// gate is where requests with a named fault arrive, and where some of them wait.
type gate struct {
	arrivals int
	// arrival is closed, and replaced, each time a request arrives.
	arrival chan struct{}
	// open is closed when the gate is opened. The gate then remains open.
	open   chan struct{}
	opened bool
}

// fault is a rule that has struck. The zero value is no fault.
type fault struct {
	Rule
	gate *gate
}

func newScript() *script { return &script{gates: map[string]*gate{}, strikes: map[Kind]int{}} }

func (s *script) set(f Faults) error {
	if err := f.validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
	for _, rule := range f.Rules {
		s.rules = append(s.rules, &armedRule{Rule: rule})
	}
	s.draw = rand.New(rand.NewPCG(f.Seed, 0))
	return nil
}

// clear opens the gates under the same lock under which pick returns
// them, so that no request is held by a rule that was removed.
func (s *script) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
	for _, g := range s.gates {
		g.release()
	}
	clear(s.gates)
}

// pick returns the fault for a request, among the kinds of one group.
func (s *script) pick(subject Match, group func(Kind) bool) fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rule := range s.rules {
		if group(rule.Kind) && rule.Match.covers(subject) && s.comesUp(rule) {
			rule.struck++
			return fault{Rule: rule.Rule, gate: s.gate(rule.Name)}
		}
	}
	return fault{}
}

func (s *script) comesUp(rule *armedRule) bool {
	if rule.Times > 0 && rule.struck >= rule.Times {
		return false
	}
	return rule.Rate == 0 || s.draw.Float64() < rule.Rate
}

// gate returns the gate with the name, or nil if the name is empty.
func (s *script) gate(name string) *gate {
	if name == "" {
		return nil
	}
	g := s.gates[name]
	if g == nil {
		g = &gate{arrival: make(chan struct{}), open: make(chan struct{})}
		s.gates[name] = g
	}
	return g
}

// arrive counts the fault, and wakes those who wait for it. The fault may be empty.
func (s *script) arrive(f fault) {
	if f.Kind == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.strikes[f.Kind]++
	if f.gate == nil {
		return
	}
	f.gate.arrivals++
	close(f.gate.arrival)
	f.gate.arrival = make(chan struct{})
}

func (s *script) stats() map[Kind]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.strikes)
}

// await returns when the named fault has struck count times since the gates were last cleared.
func (s *script) await(ctx context.Context, name string, count int) error {
	for {
		s.mu.Lock()
		g := s.gate(name)
		arrivals, arrival := g.arrivals, g.arrival
		s.mu.Unlock()
		if arrivals >= count {
			return nil
		}
		select {
		case <-arrival:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *script) release(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate(name).release()
}

func (g *gate) release() {
	if !g.opened {
		g.opened = true
		close(g.open)
	}
}

// released returns a channel that is closed when the fault is released. For a fault without a name, it is nil.
func (f fault) released() <-chan struct{} {
	if f.gate == nil {
		return nil
	}
	return f.gate.open
}
