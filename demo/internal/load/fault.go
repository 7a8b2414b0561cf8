package load

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// Fault is something that goes wrong on the side of a client.
type Fault string

// These are the faults of clients.
const (
	// LeaveEarly sends the request and closes the connection before there can be an answer.
	LeaveEarly Fault = "left before the answer"
	// CutAnswer closes the connection while the answer is being received.
	CutAnswer Fault = "cut off during the answer"
	// CutRequest loses the connection while the request is being sent.
	CutRequest Fault = "cut off while sending"
	// Overlap sends the request twice at the same time.
	Overlap Fault = "sent twice at once"
	// AskAgain repeats a request that was answered already.
	AskAgain Fault = "sent again after the answer"
)

// rates are the chances of the faults of an attempt, in the order in which they are drawn.
var rates = []struct {
	fault Fault
	rate  float64
}{{LeaveEarly, 0.08}, {CutAnswer, 0.05}, {CutRequest, 0.02}, {Overlap, 0.06}}

// askAgainRate is the chance that a client repeats a request that was answered already.
const askAgainRate = 0.05

// drawFault returns the fault of an attempt, which is mostly none.
func drawFault(draw *rand.Rand) Fault {
	at := draw.Float64()
	for _, r := range rates {
		if at < r.rate {
			return r.fault
		}
		at -= r.rate
	}
	return ""
}

// leaveWithin is the longest time after which a client with LeaveEarly leaves.
const leaveWithin = 20 * time.Millisecond

var errCut = errors.New("the connection was cut by the client")

// cutReader returns half of the body, and then an error.
type cutReader struct{ rest []byte }

func newCutReader(body []byte) io.Reader { return &cutReader{rest: body[:len(body)/2]} }

// Read implements [io.Reader].
func (c *cutReader) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, errCut
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// faultCounts counts the faults that happened.
type faultCounts struct {
	mu     sync.Mutex
	counts map[Fault]int
}

func (f *faultCounts) add(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[fault]++
}

func (f *faultCounts) all() map[Fault]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}
