package redis

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// These are the limits of a batch in calls and, approximately, bytes: a larger batch would delay the calls after it.
const (
	maxBatch      = 128
	maxBatchBytes = 1 << 20
	// maxLanes is how many batches are sent at once: the client prepares one while the server processes another.
	maxLanes = 2
	// laneWorth is how many waiting calls justify a second batch beside a smaller one that was sent.
	laneWorth = 24
)

// kind is the kind of a call.
type kind uint8

const (
	kindWrite kind = iota // makes or settles a record
	kindLook              // looks a record up
	kindGet               // gets a value of a front
	kindRun               // runs another script
)

// call is one request to the server. Its result is set when it is done.
type call struct {
	kind   kind
	script *script  // of kindRun
	keys   []string // of a write: the record, the index, perhaps the index of its provider's id; of a look: the record
	args   []string

	done  chan struct{}
	now   int64 // the server's clock, in microseconds, of a write or a look
	reply rueidis.RedisMessage
	err   error
}

// These are the first arguments of a write.
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

// unacked reports whether no replica has to acknowledge what the call writes, if it writes at all.
func (c *call) unacked() bool {
	return c.kind == kindLook || c.kind == kindRun && c.script.unacked
}

// sender sends calls to the server. Calls of concurrent callers are sent together: while a batch is being processed,
// arriving calls gather, and form the next batch. No timer delays a call: a lone call is sent immediately. All records
// that a batch makes and settles are written by one run of a script, and all look-ups are one command, so that they
// share most of the costs, above all the server's fsync. So a second batch is sent beside the first only if it is not
// the smaller one. In a cluster one run of a script has the keys of one slot: there each call is sent on its own, and
// the client gathers them by node.
type sender struct {
	ahead atomic.Int64 // how far a [TestClock] has moved the time, in microseconds; zero in every program

	client  rueidis.Client
	cluster bool
	acks    acks
	// timeout bounds a call that the server does not answer. It belongs to the sender: a caller that leaves does not
	// end a batch, or a connection that is being made, for others.
	timeout time.Duration
	// aside sends calls that need no acknowledgements, if other calls wait for them.
	aside *sender

	mu      sync.Mutex
	queue   []*call
	lanes   int // batches being processed
	sent    int // calls in them
	closed  bool
	running sync.WaitGroup
}

// do makes a call and waits for its answer. If the caller leaves, the call is withdrawn if it is still waiting;
// otherwise its answer is dropped.
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

// worthLane reports whether the waiting calls justify a batch beside that many others. The caller holds the lock.
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

// lane sends batches until there are no calls left, or not enough.
func (s *sender) lane() {
	for calls := s.take(0); calls != nil; calls = s.take(len(calls)) {
		s.send(calls)
	}
}

// take takes the gathered calls after a batch of back calls has returned, or ends the lane. Calls that it leaves are
// sent after the batch that is still being processed.
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

// start runs a function that close waits for, unless the sender is closed.
func (s *sender) start(f func()) (started bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Go(f)
	}
	return !s.closed
}

// close waits for the calls in progress, which answers waiting calls, and closes the connections.
func (s *sender) close() {
	s.finish()
	s.client.Close()
}

// finish waits for the calls in progress, and accepts no others.
func (s *sender) finish() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	if s.aside != nil {
		s.aside.finish()
	}
}
