package suite

import (
	"io"
	"net/http"
	"strings"

	"github.com/onceward/onceward"
)

// HookHeader is a field that a hook in front of the guard adds to each answer, in the header that the framework's own
// context shows it.
const HookHeader = "X-Hook"

// hookedLimit is the limit of answers in a server with a hook, in reserved mode: a larger one is streamed.
const hookedLimit = 64

// ways are the ways to answer that [WriteAs] has.
var ways = []string{"whole", "streamed", "hinted", "large"}

// WriteAs answers in the way that the memo of a payment names.
func WriteAs(memo string, w http.ResponseWriter) {
	w.Header().Set("X-Handler", memo)
	if memo == "hinted" {
		w.WriteHeader(http.StatusEarlyHints)
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, memo)
	switch memo {
	case "streamed":
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, " and more")
	case "large":
		_, _ = io.WriteString(w, strings.Repeat(".", hookedLimit))
	}
}

// testHooks: a hook that runs when the answer begins finds the answer that is sent, in whatever way the handler answers,
// and what the hook adds reaches the client as without protection.
func testHooks(s *service) {
	s.makeGuard(setup{})
	s.checkHooks("reserved", reserved, onceward.ResponseLimit(hookedLimit))
	s.checkHooks("transactional", onceward.Transactional())
}

func (s *service) checkHooks(mode string, options ...onceward.Option) {
	s.Helper()
	without := s.adapter.Hooks(s.T, nil)
	with := s.adapter.Hooks(s.T, s.guard, options...)
	ask := func(caller Caller, way, key string) Answer {
		s.Helper()
		r := keyed(key)
		r.Memo = way
		a, err := caller.Call(s.Context(), r)
		s.must(err)
		return a
	}
	for _, way := range ways {
		want := ask(without, way, "")
		if want.Header.Get(HookHeader) == "" {
			s.Fatalf("%s: the hook adds nothing without protection", way)
		}
		first := ask(with, way, mode+way)
		if got := first.Header; first.Status != want.Status || first.Body != want.Body ||
			got.Get(HookHeader) != want.Header.Get(HookHeader) || got.Get("X-Handler") != want.Header.Get("X-Handler") {
			s.Errorf("%s, %s: got %s with %v, want, as without protection, %s with %v", mode, way, first, got, want, want.Header)
		}
		retry := ask(with, way, mode+way)
		if got := retry.Header.Values(HookHeader); len(got) != 1 || got[0] != want.Header.Get(HookHeader) {
			s.Errorf("%s, %s: a retry gets %s with %v of the hook, want %v", mode, way, retry, got, want.Header.Values(HookHeader))
		}
	}
}
