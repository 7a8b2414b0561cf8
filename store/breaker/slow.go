package breaker

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/store"
)

// A call can take long although the store is well: it waits for a connection or for the one writer while handlers are
// at work in their transactions, or it is a job in the background, whose caller gives it a minute. Whether the store is
// well then a look-up tells, which waits for neither. It says nothing about writes: what cannot wait for a handler is
// not excused by it.

// background holds the calls that go through many records or messages.
var background = map[wrap.Call]bool{
	"sweep": true, "reap": true, "list": true, "stats": true, "rewrite": true, "find hash": true,
	"find provider id": true, "audit": true, "purge audit": true, "external events": true, "purge external events": true,
	"messages": true, "message stats": true, "free messages": true, "purge messages": true,
	"consumed events": true, "purge events": true,
}

// inTransaction holds the calls that a handler makes in its transaction, where another one can have what they lock.
var inTransaction = map[wrap.Call]bool{
	"add message": true, "add to answer": true, "remember event": true, "upsert row": true, "lock name": true,
}

// reads holds the calls that wait for no writer.
var reads = map[wrap.Call]bool{"get": true, "late completions": true}

// hasOneWriter reports whether all writes of a store wait for handlers: such a store gives them less than the lease.
func hasOneWriter(inside store.Store) bool {
	in, ok := inside.(store.Transactor)
	if !ok {
		return false
	}
	longest := in.LongestWork(time.Hour)
	return 0 < longest && longest < time.Hour
}

// mayTakeLong reports whether a call can take long although the store is well: it goes through a lot, or there was a
// handler at work since it began for which it can wait.
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

// judgeByLook judges a call that took too long by a look-up in its place. One that is excused is no success, because
// its own question was not answered. But a probe is one: the next would not get further.
func (c call) judgeByLook() {
	failure := c.store.look()
	if failure == nil && c.store.State() != StateHalfOpen {
		failure = errNotJudged
	}
	c.judged(failure)
}

// look is a look-up that is under way.
type look struct {
	ended chan struct{}
	err   error // why the store is not well, if it is not
}

// look asks the store for a record that is not there, and returns why it is not well, or nil. Those who ask while a
// look-up is under way share its answer; none of them waits for longer than a call may take.
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
