package suite

import (
	"context"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
)

// gate is a handler that says that it runs, and waits until it may go on.
type gate struct {
	running chan context.Context
	open    chan struct{}
}

func newGate() *gate { return &gate{running: make(chan context.Context, 1), open: make(chan struct{})} }

// before holds the work back.
func (g *gate) before(work Work) Work {
	return func(ctx context.Context, p Payment) Reply {
		g.running <- ctx
		<-g.open
		return work(ctx, p)
	}
}

// testConflict: a duplicate of what is under way is told to come again, and then gets the answer.
func testConflict(s *service) {
	g := newGate()
	s.serveWork(g.before(s.pay), reserved)
	answer := s.send(keyed("k"))
	await.Value(s, "the handler", g.running)
	got := s.wantProblem("in flight", s.call(keyed("k")), http.StatusConflict, "in-progress")
	if !got.Retryable || got.RetryAfter < time.Second {
		s.Errorf("in flight: got %+v, want retryable after a second", got)
	}
	other := keyed("k")
	other.Amount = 8
	s.wantProblem("in flight, another request", s.call(other), http.StatusUnprocessableEntity, "mismatch")
	close(g.open)
	first := s.want("first", await.Value(s, "the answer", answer), http.StatusCreated, false)
	s.wantSame("replay", s.call(keyed("k")), first)
	s.wantRuns("one key", 1)
}

// testWait: a duplicate may wait for the answer instead.
func testWait(s *service) {
	g := newGate()
	s.serveWork(g.before(s.pay), reserved, onceward.InFlightWait(time.Minute))
	answer := s.send(keyed("k"))
	await.Value(s, "the handler", g.running)
	duplicate := s.send(keyed("k"))
	for len(observed[onceward.DecidedEvent](s)) < 2 { // until the duplicate has met the first one
		await.Value(s, "the decision about the duplicate", s.told)
	}
	close(g.open)
	first := s.want("first", await.Value(s, "the answer", answer), http.StatusCreated, false)
	s.wantSame("duplicate", await.Value(s, "its answer", duplicate), first)
	s.wantRuns("one key", 1)
}

// testDuplicates: of many requests under one key at the same time one is executed.
func testDuplicates(s *service, mode onceward.Option) {
	s.serve(mode)
	var answers []<-chan Answer
	for range 50 {
		answers = append(answers, s.send(keyed("k")))
	}
	executed, body := 0, ""
	for _, answer := range answers {
		switch a := await.Value(s, "an answer", answer); {
		case a.Status == http.StatusConflict && a.Code == "in-progress":
		case a.Status == http.StatusCreated && (body == "" || a.Body == body):
			body = a.Body
			if !a.Replayed {
				executed++
			}
		default:
			s.Errorf("got %+v, want 201 with %q, or a conflict", a, body)
		}
	}
	if executed != 1 {
		s.Errorf("%d of the answers were no replays, want 1", executed)
	}
	s.wantRuns("one key", 1)
	s.wantQuiet()
}

// testCallerLeaves: what has begun goes on without its caller, whose retry gets the answer.
func testCallerLeaves(s *service) {
	g := newGate()
	s.serveWork(g.before(s.pay), reserved, onceward.InFlightWait(time.Minute))
	ctx, leave := context.WithCancel(s.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.caller.Call(ctx, keyed("k"))
		left <- err
	}()
	working := await.Value(s, "the handler", g.running)
	leave()
	if err := await.Value(s, "the caller's error", left); err == nil {
		s.Error("a caller that left was answered")
	}
	retry := s.send(keyed("k"))
	select {
	case <-working.Done():
		s.Error("the caller left, and its work was told to stop")
	case <-time.After(50 * time.Millisecond): // that the server notices has no other sign
	}
	close(g.open)
	s.want("retry", await.Value(s, "the answer to the retry", retry), http.StatusCreated, true)
	s.wantRuns("one key", 1)
}
