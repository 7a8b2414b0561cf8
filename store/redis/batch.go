package redis

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// The limits of a batch: so many calls, and about so many bytes, that it does not hold up those behind it.
const (
	maxBatch      = 128
	maxBatchBytes = 1 << 20
	// maxLanes is how many batches are on the wire at once: the client prepares one while the server is at another.
	maxLanes = 2
	// laneWorth is how many waiting calls are worth a batch beside a smaller one that is on the wire.
	laneWorth = 24
)

// kind is what a call does.
type kind uint8

const (
	kindWrite kind = iota // makes or settles a record
	kindLook              // looks a record up
	kindGet               // gets what a front holds
	kindRun               // runs another script
)

// call is one question to the server. What it answers is there when it is done.
type call struct {
	kind   kind
	script *script  // of kindRun
	keys   []string // of a write the record, the index and perhaps that of its provider's id, of a look the record
	args   []string

	done  chan struct{}
	now   int64 // the server's clock, in microseconds, of a write or a look
	reply rueidis.RedisMessage
	err   error
}

// The first argument of a write.
const (
	opMake     = "make"
	opComplete = "complete"
	opRelease  = "release"
	opIdentify = "identify" // complete with a provider's id
)

func (c *call) size() (bytes int) {
	for _, arg := range c.args {
		bytes += len(arg)
	}
	return bytes
}

// unacked reports whether no replica has to have what the call writes, if it writes at all.
func (c *call) unacked() bool {
	return c.kind == kindLook || c.kind == kindRun && c.script.unacked
}

// sender brings calls to the server. Calls of concurrent callers go together: while a batch is on the wire, what
// arrives gathers, and goes as the next one. Nothing is held back by a timer: a lone caller goes at once. All records
// that a batch makes and settles go in one run of a script, and all that it looks up in one command, so that much of
// what a call costs is paid once for all, the server's fsync above all: so a second batch goes out beside the first
// only when it is not the smaller one. In a cluster a run of a script has the keys of one slot: there each call goes by
// itself, and the client gathers them by node.
type sender struct {
	ahead atomic.Int64 // how far a [TestClock] has moved the time, in microseconds; zero in every program

	client  rueidis.Client
	cluster bool
	acks    acks
	// aside brings what needs no acknowledgements, where other calls wait for them.
	aside *sender

	mu      sync.Mutex
	queue   []*call
	lanes   int // batches on the wire
	sent    int // calls in them
	closed  bool
	running sync.WaitGroup
}

// do makes a call and waits for its answer. A caller who leaves takes its call along if that is still waiting; else its
// answer is dropped.
func (s *sender) do(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	if s.aside != nil && c.unacked() {
		return s.aside.do(ctx, c)
	}
	c.done = make(chan struct{})
	if err := s.enqueue(c); err != nil {
		return err
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	s.withdraw(c)
	select {
	case <-c.done:
		return c.err
	default:
		return unavailable(ctx.Err())
	}
}

func (s *sender) enqueue(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return unavailable(errClosed)
	case s.cluster:
		s.running.Go(func() { s.send([]*call{c}) })
		return nil
	}
	s.queue = append(s.queue, c)
	if s.lanes < maxLanes && s.worthLane(s.lanes) {
		s.lanes++
		s.running.Go(s.lane)
	}
	return nil
}

// worthLane reports whether what waits is worth a batch beside so many on the wire. The caller holds the lock.
func (s *sender) worthLane(others int) bool {
	return others == 0 || len(s.queue) >= max(laneWorth, s.sent)
}

func (s *sender) withdraw(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.queue, c); i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	}
}

// lane sends batches until nothing is left to do, or not enough.
func (s *sender) lane() {
	for calls := s.take(0); calls != nil; calls = s.take(len(calls)) {
		s.send(calls)
	}
}

// take takes what has gathered when a batch of so many calls is back, or ends the lane. What it leaves goes with the
// batch after the one that is still on the wire.
func (s *sender) take(back int) []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent -= back
	n, bytes := 0, 0
	for ; n < min(len(s.queue), maxBatch); n++ {
		bytes += s.queue[n].size()
		if n > 0 && bytes > maxBatchBytes {
			break
		}
	}
	if n == 0 || !s.worthLane(s.lanes-1) {
		s.lanes--
		return nil
	}
	s.sent += n
	calls := slices.Clone(s.queue[:n])
	s.queue = slices.Delete(s.queue, 0, n)
	return calls
}

// start runs something that close waits for, unless the sender is closed.
func (s *sender) start(f func()) (started bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Go(f)
	}
	return !s.closed
}

// close waits for the calls under way, which answer what still waits, and closes the connections.
func (s *sender) close() {
	s.finish()
	s.client.Close()
}

// finish waits for the calls under way, and takes no others.
func (s *sender) finish() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	if s.aside != nil {
		s.aside.finish()
	}
}
