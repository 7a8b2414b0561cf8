package breaker

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/store"
)

// A call can take long although the store works: it waits for a connection or for the single writer while handlers work
// in their transactions, or it is a background job, to which its caller gives a minute. A look-up, which waits for
// neither, then shows whether the store works. It proves nothing about writes: a slow call that cannot wait for a
// handler counts as failed.

// background holds the calls that go through many records or messages.
var background = map[wrap.Call]bool{
	"sweep": true, "reap": true, "list": true, "stats": true, "rewrite": true, "find hash": true,
	"find provider id": true, "audit": true, "purge audit": true, "external events": true, "purge external events": true,
	"messages": true, "message stats": true, "free messages": true, "purge messages": true,
	"consumed events": true, "purge events": true,
}

// inTransaction holds the calls that a handler makes in its transaction, and that wait if another transaction holds the
// same lock.
var inTransaction = map[wrap.Call]bool{
	"add message": true, "add to answer": true, "remember event": true, "upsert row": true, "lock name": true,
}

// reads holds the calls that never wait for a writer.
var reads = map[wrap.Call]bool{"get": true, "late completions": true}

// hasOneWriter reports whether all writes of a store wait for handlers: such a store limits a handler to less than the
// lease.
func hasOneWriter(inside store.Store) bool {
	in, ok := inside.(store.Transactor)
	if !ok {
		return false
	}
	longest := in.LongestWork(time.Hour)
	return 0 < longest && longest < time.Hour
}

// mayTakeLong reports whether a call can take long although the store works: it is a background job, or it can wait for
// handlers and one was working after the call began.
func (c *call) mayTakeLong() bool {
	s := c.store
	if background[c.name] {
		return true
	}
	if !c.waits && (!s.oneWriter || reads[c.name]) {
		return false
	}
	left := s.left.Load()
	return s.working.Load() > 0 || left != nil && left.After(c.began)
}

// judgeByLook judges a call that took too long by a look-up. If the look-up succeeds, the call is not counted, because
// it has not succeeded itself. Only a probe then counts as a success: the next probe would take as long.
func (c call) judgeByLook() {
	failure := c.store.look()
	if failure == nil && c.store.State() != StateHalfOpen {
		failure = errNotJudged
	}
	c.judged(failure)
}

// look is a look-up in progress.
type look struct {
	ended chan struct{}
	err   error // why the store does not work, or nil
}

// look reads a record that does not exist, and returns why the store does not work, or nil. Concurrent callers share
// one look-up, and wait no longer than a call may take.
func (s *Store) look() error {
	s.mu.Lock()
	l := s.looking
	if l == nil {
		l = &look{ended: make(chan struct{})}
		s.looking = l
		go s.lookUp(l)
	}
	s.mu.Unlock()
	select {
	case <-l.ended:
		return l.err
	case <-time.After(s.config.SlowCall):
		return fmt.Errorf("a look-up took longer than %s", s.config.SlowCall)
	}
}

func (s *Store) lookUp(l *look) {
	ctx, cancel := context.WithTimeout(context.Background(), s.config.SlowCall)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			l.err = fmt.Errorf("the store panicked: %v", p)
		}
		s.mu.Lock()
		s.looking = nil
		s.mu.Unlock()
		close(l.ended)
	}()
	_, err := s.Unwrap().Get(ctx, store.ID{Scope: "onceward/breaker", Key: "look"})
	l.err = judge(ctx, err)
}
