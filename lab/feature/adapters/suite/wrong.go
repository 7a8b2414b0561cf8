package suite

import (
	"context"
	"net/http"
	"strings"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// testWrong: a wrapper that lets the handler answer past the guard is noticed at its first request. The log tells of it
// once, the observer each time, and nothing is executed twice.
func testWrong(s *service, wrong Wrong) {
	created := func(context.Context, Payment) Reply { return Reply{Status: http.StatusCreated} }
	if wrong.NotRerun {
		testNotRerun(s)
		return
	}
	s.serveWork(created, reserved)
	first := s.call(keyed("k"))
	again := s.call(keyed("k"))
	if wrong.Late {
		s.wantLogged("the answer came after the handler had returned", 1)
	} else {
		s.want("the caller has its answer", first, http.StatusCreated, false)
		s.wantLogged("the handler answered past the guard", 1)
		s.wantProblem("again", again, http.StatusConflict, "response-not-stored")
	}
	s.wantRuns("one key", 1)
	s.call(keyed("l"))
	told := observed[onceward.BypassedEvent](s)
	if len(told) != 2 || told[0].Late != wrong.Late || !wrong.Late && told[0].Status != http.StatusCreated {
		s.Errorf("the observer was told %+v, want two events", told)
	}
	if lines := strings.Count(s.log.String(), "level=ERROR"); lines != 1 {
		s.Errorf("%d errors are in the log, want 1: %s", lines, s.log.String())
	}
}

// testNotRerun: a wrapper that cannot run its handler again has its transaction undone, and does not say otherwise.
func testNotRerun(s *service) {
	s.serveWith(setup{wrap: func(s *sqlite.Store) store.Store { return undoing{s} }}, onceward.Transactional())
	s.wantProblem("first", s.call(keyed("k")), http.StatusServiceUnavailable, "not-executed")
	s.wantRuns("first", 1)
	s.wantPayments("first", 0)
	s.wantLogged("the handler did not run again", 1)
}

// wantLogged checks how often the log has a line that names the operation and leads to the page with the remedy.
func (s *service) wantLogged(what string, want int) {
	s.Helper()
	found := 0
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, what) && strings.Contains(line, s.adapter.Operation) &&
			strings.Contains(line, "docs/routers.md") && strings.Contains(line, "level=ERROR") {
			found++
		}
	}
	if found != want {
		s.Errorf("%q is %d times in the log, want %d: %s", what, found, want, s.log.String())
	}
}
