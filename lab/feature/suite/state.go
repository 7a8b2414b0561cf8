package suite

import (
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// testState: what a handler can ask its framework is the same with protection as without: on the first run, on a run
// after one that the database undid, and in a request that is not protected because it has no key.
func testState(s *service) {
	without := s.adapter.State(s.T, nil)
	ask := func(what string, caller Caller, r Request) string {
		s.Helper()
		a, err := caller.Call(s.Context(), r)
		s.must(err)
		return s.want(what, a, http.StatusCreated, false).Body
	}
	unkeyed := keyed("")
	want := ask("without protection", without, unkeyed)
	if want == "" {
		s.Fatal("the handler says nothing about its framework")
	}
	serve := func(with setup, options ...onceward.Option) Caller {
		s.makeGuard(with)
		return s.adapter.State(s.T, s.guard, options...)
	}
	undone := setup{wrap: func(s *sqlite.Store) store.Store { return undoing{s} }}
	for what, got := range map[string]string{
		"on the first run, reserved":      ask("reserved", serve(setup{}, reserved), keyed("reserved")),
		"on the first run, transactional": ask("transactional", serve(setup{}, onceward.Transactional()), keyed("first")),
		"on the run after":                ask("rerun", serve(undone, onceward.Transactional()), keyed("rerun")),
		"without a key":                   ask("no key", serve(setup{}, reserved, onceward.KeyOptional()), unkeyed),
	} {
		if got != want {
			s.Errorf("%s the handler finds\n%s\nwant, as without protection,\n%s", what, got, want)
		}
	}
	s.wantQuiet()
}
