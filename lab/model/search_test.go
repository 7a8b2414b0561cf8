package model

import (
	"fmt"
	"strings"
	"time"

	"github.com/onceward/onceward/store"
)

// mode is how a request is executed.
type mode uint8

const (
	reserved mode = iota
	transactional
)

// spec describes one request of a scenario.
type spec struct {
	payload byte
	mode    mode
}

// scenario bounds a search.
type scenario struct {
	name     string
	requests []spec
	policy   store.LostPolicy
	attempts int8 // how many tokens are given out at most
	dedups   bool // the provider knows a downstream key again
	soft     bool // the reaper keeps what expired
	bust     bool // there is an operator who removes records, by force too, and has dead letters looked at again
	back     bool // the clock may step back once
	ends     bool // there is an operator who ends what has lost its owner
	rules    rules
	// watch is what the search looks for; other breaches are passed over. Zero watches everything.
	watch breaches
}

// rules are what the actors follow. The zero value is the truth; each field is a deliberate mistake.
type rules struct {
	// step replaces the state machine.
	step func(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error)
	// checkThenInsert reserves in two steps.
	checkThenInsert bool
	// blindCommit runs a transaction again when the reply to its COMMIT was lost.
	blindCommit bool
	// hastyReconciler takes the provider's "not found" for "not executed".
	hastyReconciler bool
	// ownAnswer makes an owner that lost to a resolution send its own answer.
	ownAnswer bool
	// forgetfulStore loses the tokens of what it removes.
	forgetfulStore bool
	// freshLease makes an owner count the lease of a repeated grant from its repetition.
	freshLease bool
	// waryRelease lets an owner say "nothing was done" for the owners before it.
	waryRelease bool
	// stepIsOperation takes what was learned of a step for the outcome of the operation.
	stepIsOperation bool
}

// action is one edge of the search.
type action struct {
	who, what string
}

func (a action) String() string { return a.who + " " + a.what }

// result is what a search came to.
type result struct {
	states int
	steps  int      // moves made
	breach breaches // empty if nothing was found
	trace  []string
	fired  map[action]int
	moved  map[transition]int
}

// search is a breadth-first walk, so that the first violation it meets has the shortest trace there is.
type search struct {
	scenario
	rows    *table
	worlds  []world
	parents []int32
	actions []action
	visited map[world]struct{}
	result  result
	current int32
}

func (s scenario) search() result {
	run := &search{scenario: s, rows: newTable(), visited: make(map[world]struct{})}
	run.result.fired = make(map[action]int)
	run.result.moved = make(map[transition]int)
	if run.rules.step == nil {
		run.rules.step = store.Step
	}
	if run.watch == 0 {
		run.watch = allInvariants
	}
	run.visit(world{}, action{who: "start"})
	for int(run.current) < len(run.worlds) && run.result.breach == 0 {
		run.expand(run.worlds[run.current])
		run.current++
	}
	run.result.states = len(run.worlds)
	return run.result
}

// expand makes every move that some actor can make now.
func (s *search) expand(w world) {
	s.clockMoves(w)
	s.janitorMoves(w)
	s.reconcilerMoves(w)
	s.operatorMoves(w)
	s.endMoves(w)
	for i, spec := range s.requests {
		if spec.mode == transactional {
			s.transactionMoves(w, i)
		} else {
			s.ownerMoves(w, i)
		}
	}
}

// try makes one move from w and keeps where it leads to. A move that turns out to change nothing is no move.
func (s *search) try(w world, a action, move func(t *turn)) {
	t := turn{search: s, world: w}
	move(&t)
	t.canonical()
	if t.world == w && t.breach == 0 || t.ledger.top > s.attempts {
		return
	}
	s.result.fired[a]++
	s.result.steps++
	t.inspect()
	breach := t.breach & s.watch
	if breach == 0 {
		s.visit(t.world, a)
		return
	}
	if s.result.breach == 0 {
		s.result.breach = breach
		s.result.trace = append(s.traceTo(s.current), s.describe(a, &t.world))
	}
}

func (s *search) visit(w world, a action) {
	if _, ok := s.visited[w]; ok {
		return
	}
	s.visited[w] = struct{}{}
	s.worlds = append(s.worlds, w)
	s.parents = append(s.parents, s.current)
	s.actions = append(s.actions, a)
}

// traceTo tells how a world was reached.
func (s *search) traceTo(at int32) []string {
	if at == 0 {
		return nil
	}
	return append(s.traceTo(s.parents[at]), s.describe(s.actions[at], &s.worlds[at]))
}

func (s *search) describe(a action, w *world) string {
	rec := s.rows.record(w.row)
	return fmt.Sprintf("%-52s %s, attempt %d, effects %d", a, rec.State, rec.Attempt, w.ledger.effects)
}

// String prints the shortest way to the violation.
func (r *result) String() string {
	if r.breach == 0 {
		return fmt.Sprintf("exhaustive search: %d states, %d moves, 0 violations", r.states, r.steps)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s violated after %d steps (%d states):", r.breach, len(r.trace), r.states)
	for i, line := range r.trace {
		fmt.Fprintf(&b, "\n  %2d. %s", i+1, line)
	}
	return b.String()
}
