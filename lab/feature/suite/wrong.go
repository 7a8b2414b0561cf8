package suite

import (
	"context"
	"net/http"
	"strings"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// wrongs is what is expected of each mistake. All are noticed at the first request: the log tells of it once.
var wrongs = map[Mistake]func(s *service, wrong Wrong){
	AnsweredPast: testAnsweredPast, AnsweredLate: testAnsweredLate, NoAnswer: testNoAnswer, NotRerun: testNotRerun,
}

// created is a handler that answers with a status alone.
func created(context.Context, Payment) Reply { return Reply{Status: http.StatusCreated} }

// testAnsweredPast: the client has its answer, and nothing is executed again for a retry that cannot get it.
func testAnsweredPast(s *service, wrong Wrong) {
	s.serveWork(created, reserved)
	s.want("the client has its answer", s.call(keyed("k")), http.StatusCreated, false)
	s.wantLogged("ERROR", "the handler answered past the guard")
	if !wrong.RunsAgain {
		s.wantProblem("again", s.call(keyed("k")), http.StatusConflict, "response-not-stored")
		s.wantRuns("one key", 1)
	}
	rec, err := s.store.Get(s.Context(), store.ID{Scope: "alice", Key: "k"})
	s.must(err)
	if got := rec.Response; rec.State != store.StateCompleted || !got.NotStored || got.Status != http.StatusCreated {
		s.Errorf("the record is %s with %+v, want a 201 that is not stored", rec.State, got)
	}
	s.call(keyed("l"))
	s.wantLogged("ERROR", "the handler answered past the guard")
	told := observed[onceward.BypassedEvent](s)
	if len(told) != 2 || told[0].Late || told[0].Status != http.StatusCreated {
		s.Errorf("the observer was told %+v, want two events", told)
	}
}

// testAnsweredLate: what the guard had is stored.
func testAnsweredLate(s *service, _ Wrong) {
	s.serveWork(created, reserved)
	s.call(keyed("k"))
	s.call(keyed("k"))
	s.wantRuns("one key", 1)
	s.call(keyed("l"))
	s.wantLogged("ERROR", "the answer came after the handler had returned")
	if told := observed[onceward.BypassedEvent](s); len(told) != 2 || !told[0].Late {
		s.Errorf("the observer was told %+v, want two late events", told)
	}
}

// testNoAnswer: an empty answer is stored, and a retry gets it.
func testNoAnswer(s *service, _ Wrong) {
	s.serveWork(created, reserved)
	s.call(keyed("k"))
	s.wantLogged("WARN", "the handler wrote no answer")
	runs := s.runs.Load()
	s.want("again", s.call(keyed("k")), http.StatusOK, true)
	s.wantRuns("one key", runs)
}

// testNotRerun: the transaction is undone, and nothing else is said.
func testNotRerun(s *service, _ Wrong) {
	s.serveWith(setup{wrap: func(s *sqlite.Store) store.Store { return undoing{s} }}, onceward.Transactional())
	s.wantProblem("first", s.call(keyed("k")), http.StatusServiceUnavailable, "not-executed")
	s.wantRuns("first", 1)
	s.wantPayments("first", 0)
	s.wantLogged("ERROR", "the handler did not run again")
}

// wantLogged checks that the log has one line that names the operation and leads to the page with the remedy.
func (s *service) wantLogged(level, what string) {
	s.Helper()
	found := 0
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, what) && strings.Contains(line, `operation="`+s.adapter.Operation+`"`) &&
			strings.Contains(line, "docs/routers.md") && strings.Contains(line, "level="+level) {
			found++
		}
	}
	if found != 1 {
		s.Errorf("%q is %d times in the log, want once: %s", what, found, s.log.String())
	}
}
