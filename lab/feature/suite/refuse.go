package suite

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// testUnauthenticated: a caller who is not known has no keys.
func testUnauthenticated(s *service) {
	s.serve(reserved)
	r := keyed("k")
	r.Tenant = ""
	s.wantProblem("no tenant", s.call(r), http.StatusUnauthorized, "unauthenticated")
	s.wantRuns("no tenant", 0)
	s.wantNothingStored("no tenant")
}

// testBadKeys: what is no key is refused before anything happens.
func testBadKeys(s *service) {
	s.serve(reserved)
	s.wantProblem("none", s.call(keyed("")), http.StatusBadRequest, "missing-key")
	s.wantProblem("too long", s.call(keyed(strings.Repeat("k", 256))), http.StatusBadRequest, "invalid-key")
	s.wantRuns("bad keys", 0)
	s.wantNothingStored("bad keys")
}

// testTwoKeys: of two keys none is chosen.
func testTwoKeys(s *service) {
	s.serve(reserved)
	for _, keys := range [][]string{{"k", "l"}, {"k", "k"}} {
		r := keyed("")
		r.Keys = keys
		s.wantProblem(fmt.Sprint(keys), s.call(r), http.StatusBadRequest, "invalid-key")
	}
	s.wantRuns("two keys", 0)
	s.wantNothingStored("two keys")
}

// testKeyOptional: without a key each request executes, and none is kept.
func testKeyOptional(s *service) {
	s.serve(reserved, onceward.KeyOptional())
	for range 2 {
		s.want("without a key", s.call(keyed("")), http.StatusCreated, false)
	}
	s.wantRuns("without a key", 2)
	s.wantNothingStored("without a key")
	first := s.want("with a key", s.call(keyed("k")), http.StatusCreated, false)
	s.wantSame("with a key, again", s.call(keyed("k")), first)
	s.wantRuns("with a key", 3)
}

// testFirstSent: a request from before the retention is not executed.
func testFirstSent(s *service) {
	s.serve(reserved, onceward.RequireFirstSent(23*time.Hour, time.Minute))
	now := time.Now().UTC()
	at := func(t time.Time) string { return t.Format(http.TimeFormat) }
	for _, test := range []struct {
		what, sent string
		status     int
		code       string
	}{
		{"missing", "", http.StatusBadRequest, "first-sent-missing"},
		{"not a date", "yesterday", http.StatusBadRequest, "first-sent-invalid"},
		{"too old", at(now.Add(-25 * time.Hour)), http.StatusPreconditionFailed, "first-sent-too-old"},
		{"in the future", at(now.Add(time.Hour)), http.StatusPreconditionFailed, "first-sent-in-future"},
	} {
		r := keyed("k")
		r.FirstSent = test.sent
		s.wantProblem(test.what, s.call(r), test.status, test.code)
	}
	s.wantRuns("wrong times", 0)
	r := keyed("k")
	r.FirstSent = at(now)
	first := s.want("now", s.call(r), http.StatusCreated, false)
	s.wantSame("again", s.call(r), first)
}

// testBodyLimit: what is too large is refused whole.
func testBodyLimit(s *service) {
	s.serve(reserved, onceward.BodyLimit(200))
	large := keyed("k")
	large.Memo = strings.Repeat("m", 300)
	s.wantProblem("too large", s.call(large), http.StatusRequestEntityTooLarge, "body-too-large")
	s.wantRuns("too large", 0)
	s.wantNothingStored("too large")
	s.want("small", s.call(keyed("k")), http.StatusCreated, false)
}

// testResponseLimit: an answer that is too large to be kept is sent once, or undone.
func testResponseLimit(s *service) {
	large := strings.Repeat("r", 300)
	s.serveWork(func(ctx context.Context, p Payment) Reply {
		if err := s.write(ctx, "id", p); err != nil {
			return Reply{Status: http.StatusInternalServerError, Body: err.Error()}
		}
		return Reply{Status: http.StatusCreated, Body: large}
	}, reserved, onceward.ResponseLimit(200))
	if first := s.want("reserved", s.call(keyed("k")), http.StatusCreated, false); !strings.Contains(first.Body, large) {
		s.Errorf("reserved: got %q", first.Body)
	}
	s.wantProblem("reserved, again", s.call(keyed("k")), http.StatusConflict, "response-not-stored")
	s.wantRuns("reserved", 1)

	undone := newService(s.T, s.adapter)
	undone.serveWork(func(ctx context.Context, p Payment) Reply {
		if err := undone.write(ctx, "id", p); err != nil {
			return Reply{Status: http.StatusInternalServerError, Body: err.Error()}
		}
		return Reply{Status: http.StatusCreated, Body: large}
	}, onceward.Transactional(), onceward.ResponseLimit(200))
	got := undone.call(keyed("k"))
	undone.wantProblem("transactional", got, http.StatusInternalServerError, "response-too-large")
	undone.wantPayments("transactional", 0)
}

// full is a limiter that gives nothing.
type full struct{}

func (full) TakeKey(context.Context, string, time.Duration) *onceward.LimitError {
	return &onceward.LimitError{
		Name: onceward.LimitNewKeys, Limit: 5, Window: time.Minute, After: 42 * time.Second,
	}
}
func (full) ReturnKey(string, time.Duration, bool)                 {}
func (full) Mismatch(context.Context, string) *onceward.LimitError { return nil }
func (full) Lookup(context.Context, string) *onceward.LimitError   { return nil }

// testLimiter: a caller without allowance is told when to come again.
func testLimiter(s *service, mode onceward.Option) {
	s.serveWith(setup{configure: func(c *onceward.Config) { c.Limiter = full{} }}, mode)
	got := s.wantProblem("no allowance", s.call(keyed("k")), http.StatusTooManyRequests, "new-keys-refused")
	if !got.Retryable || got.RetryAfter != 42*time.Second {
		s.Errorf("no allowance: got %+v, want retryable after 42 s", got)
	}
	s.wantRuns("no allowance", 0)
	s.wantNothingStored("no allowance")
}

// down is a store that cannot be reached.
type down struct {
	*sqlite.Store
	err error
}

var (
	errDown   = fmt.Errorf("%w: the test pulled the plug", store.ErrUnavailable)
	errSilent = fmt.Errorf("%w: %w", store.ErrUnavailable, context.DeadlineExceeded)
)

func (d down) Reserve(context.Context, *store.Reservation) (store.Verdict, error) {
	return store.Verdict{}, d.err
}

func (d down) Transact(
	context.Context, *store.Reservation, func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	return store.Verdict{}, d.err
}

// testStoreDown: without the store nothing is executed.
func testStoreDown(s *service, mode onceward.Option) {
	s.serveWith(setup{wrap: func(s *sqlite.Store) store.Store { return down{s, errDown} }}, mode)
	got := s.wantProblem("down", s.call(keyed("k")), http.StatusServiceUnavailable, "store-unavailable")
	if !got.Retryable || got.RetryAfter == 0 {
		s.Errorf("down: got %+v, want retryable after a time", got)
	}
	s.wantRuns("down", 0)
	failed := observed[onceward.StoreFailedEvent](s)
	if len(failed) == 0 || !errors.Is(failed[0].Err, store.ErrUnavailable) {
		s.Errorf("down: the observer was told %+v", failed)
	}

	// Each request to a store that is silent waits for StoreTimeout: a client has no use for a retry before.
	s.serveWith(setup{wrap: func(s *sqlite.Store) store.Store { return down{s, errSilent} }}, mode)
	got = s.wantProblem("silent", s.call(keyed("k")), http.StatusServiceUnavailable, "store-unavailable")
	if !got.Retryable || got.RetryAfter != await.Limit {
		s.Errorf("L2: a store that is silent: got %+v, want retryable after its time-out, %s", got, await.Limit)
	}
	s.wantRuns("silent", 0)
}
