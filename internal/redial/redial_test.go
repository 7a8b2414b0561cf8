package redial_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/internal/redial"
)

var errAway = errors.New("connection refused")

// server is one that can be away.
type server struct {
	gate  redial.Gate
	away  atomic.Bool
	dials atomic.Int64
	at    atomic.Int64
	most  atomic.Int64
}

func (s *server) connect(ctx context.Context) (bool, error) {
	return redial.Do(ctx, &s.gate, nil, func(ctx context.Context) (bool, error) {
		s.dials.Add(1)
		s.most.Store(max(s.most.Load(), s.at.Add(1)))
		defer s.at.Add(-1)
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
		if s.away.Load() {
			return false, errAway
		}
		return true, nil
	})
}

// crowd lets many connect again and again for a time.
func (s *server) crowd(t *testing.T, d time.Duration) (refused int64) {
	var all sync.WaitGroup
	var n atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for range 100 {
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.connect(t.Context()); errors.Is(err, errAway) {
					n.Add(1)
				}
			}
		})
	}
	all.Wait()
	return n.Load()
}

// TestOneAttemptAtATime: a server that is away is tried a few times a second, and found when it is back.
func TestOneAttemptAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(server)
		_ = s.crowd(t, 10*time.Millisecond)
		if s.most.Load() != 100 {
			t.Errorf("%d attempts at a time at a server that is there, want 100", s.most.Load())
		}
		s.away.Store(true)
		_ = s.crowd(t, time.Second)
		s.dials.Store(0)
		s.most.Store(0)
		refused := s.crowd(t, 10*time.Second)
		if n := s.dials.Load(); n < 40 || n > 90 || s.most.Load() != 1 || refused < 40*100 {
			t.Errorf("%d attempts in ten seconds, %d at a time, for %d requests; want 40 to 90, one at a time", n,
				s.most.Load(), refused)
		}
		s.away.Store(false)
		began := time.Now()
		if ok, err := s.connect(t.Context()); !ok || time.Since(began) > 300*time.Millisecond {
			t.Errorf("a server that is back is found after %s: %v", time.Since(began), err)
		}
		s.most.Store(0)
		if _ = s.crowd(t, 10*time.Millisecond); s.most.Load() != 100 {
			t.Errorf("%d attempts at a time at a server that is back, want 100", s.most.Load())
		}
	})
}

// TestCallersThatLeave: callers that give up an attempt prove nothing about the server, and do not prevent the next
// one.
func TestCallersThatLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(server)
		leaving, leave := context.WithCancel(t.Context())
		leave()
		if _, err := s.connect(leaving); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that has left: %v", err)
		}
		_ = s.crowd(t, 10*time.Millisecond)
		if s.most.Load() != 100 {
			t.Errorf("%d attempts at a time after a caller that has left, want 100", s.most.Load())
		}

		s.away.Store(true)
		_, _ = s.connect(t.Context())
		leaving, leave = context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := s.connect(leaving); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a caller that leaves in a pause: %v", err)
			}
		})
		synctest.Wait()
		s.away.Store(false)
		both.Go(func() {
			if ok, err := s.connect(t.Context()); !ok {
				t.Errorf("a caller who waited for the one that has left: %v", err)
			}
		})
		both.Wait()
	})
}

// pool is one of some connections.
type pool struct {
	server
	free chan bool
	full atomic.Bool
}

func (p *pool) makes(int) bool { return len(p.free) == 0 && !p.full.Load() }

// take takes a connection that is free, or makes one unless the pool is full.
func (p *pool) take(ctx context.Context) (bool, error) {
	return redial.Do(ctx, &p.gate, p.makes, func(ctx context.Context) (bool, error) {
		free := p.free
		if p.makes(0) {
			free = nil // the server is silent
		}
		select {
		case <-free:
			return true, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	})
}

// TestConnectionsThatAreThere: a caller that needs no new connection does not wait for callers that do, and a caller
// that waits for a full pool delays no other.
func TestConnectionsThatAreThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pool{free: make(chan bool, 1)}
		p.gate.Note(errAway)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		all.Go(func() { _, _ = p.take(ctx) })
		time.Sleep(time.Second) // it connects
		all.Go(func() {
			if ok, err := p.take(t.Context()); !ok {
				t.Errorf("a connection that comes back: %v", err)
			}
		})
		time.Sleep(time.Second)
		p.free <- true
		time.Sleep(time.Second)
		p.free <- true
		if ok, err := p.take(t.Context()); !ok {
			t.Errorf("a connection that is there: %v", err)
		}
		cancel()
		synctest.Wait()

		p.gate.Note(errAway)
		p.gate.Note(errAway)
		all.Go(func() { // it is in the pause when the pool becomes full
			if ok, err := p.take(t.Context()); !ok {
				t.Errorf("a connection of a full pool: %v", err)
			}
		})
		synctest.Wait()
		p.full.Store(true)
		time.Sleep(time.Second)
		p.full.Store(false)
		if ok, err := redial.Do(t.Context(), &p.gate, p.makes, func(context.Context) (bool, error) { return true, nil }); !ok {
			t.Errorf("after a caller that waits for a full pool: %v", err)
		}
		p.free <- true
	})
}

// TestHooksThatPanic do not keep others from the server.
func TestHooksThatPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(server)
		s.gate.Note(errAway)
		func() {
			defer func() { _ = recover() }()
			_, _ = redial.Do(t.Context(), &s.gate, nil, func(context.Context) (bool, error) { panic("a hook") })
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if ok, err := s.connect(ctx); !ok {
			t.Errorf("after a panic: %v", err)
		}
	})
}
