package breaker

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/store"
)

// A call can take long although the store is well: it waits for a connection or for the one writer while handlers are at
// work in their transactions, or it is a job in the background, whose caller gives it a minute. Whether the store is well
// then a look-up tells, which waits for neither.

// background holds the calls that go through many records or messages.
var background = map[wrap.Call]bool{
	"sweep": true, "reap": true, "list": true, "stats": true, "rewrite": true, "audit": true, "purge audit": true,
	"external events": true, "purge external events": true,
	"messages": true, "message stats": true, "free messages": true, "purge messages": true,
	"consumed events": true, "purge events": true,
}

// mayTakeLong reports whether a call can take long although the store is well.
func (s *Store) mayTakeLong(name wrap.Call) bool { return background[name] || s.working.Load() > 0 }

// judgeByLook judges a call that took too long by a look-up in its place.
func (s *Store) judgeByLook(done func(err error)) {
	done(s.look())
	s.tell()
}

// look is a look-up that is under way.
type look struct {
	ended chan struct{}
	err   error // why the store is not well, if it is not
}

// look asks the store for a record that is not there, and returns why it is not well, or nil. Those who ask while a look-up
// is under way share its answer; none of them waits for longer than a call may take.
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
