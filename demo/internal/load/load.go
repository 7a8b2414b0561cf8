// Package load puts load on a payments API: clients request payments, refunds and bookings, lose their connections, and
// retry with the same key until they have a definitive answer. Each client keeps a note of its requests and answers.
package load

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Config configures a [Load].
type Config struct {
	// Plan is the orders of the clients.
	Plan []Order
	// Seed is the seed of the clients' random sequences. Each client has
	// its own sequence, so that it does not depend on the other clients.
	Seed uint64
	// Targets returns the base URLs of the processes that serve at this moment. It is called before each request.
	Targets func() []string
	// Every is the time between the starts of two clients.
	Every time.Duration
	// AtOnce is the largest number of clients that run at the same time. On a busy machine the
	// next client waits, because the load should show faults and not how slow the machine is.
	AtOnce int
	// HTTP sends the requests. Default: a client with enough connections for all of them.
	HTTP *http.Client
}

// Load is a run of the clients.
type Load struct {
	config Config
	slots  chan struct{}
	total  int
	faults faultCounts

	sent, answered atomic.Int64

	mu    sync.Mutex
	notes []Note
}

// New returns a run that has not started.
func New(config Config) *Load {
	if config.HTTP == nil {
		config.HTTP = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * config.AtOnce}}
	}
	l := &Load{config: config, slots: make(chan struct{}, config.AtOnce), faults: faultCounts{counts: make(map[Fault]int)}}
	for _, n := range Asked(config.Plan) {
		l.total += n
	}
	return l
}

// Run starts one client after the other, and returns their notes when all
// clients have ended. If the context ends first, some notes have no answer.
func (l *Load) Run(ctx context.Context) []Note {
	defer l.config.HTTP.CloseIdleConnections()
	ticker := time.NewTicker(l.config.Every)
	defer ticker.Stop()
	var all sync.WaitGroup
	for i := range l.config.Plan {
		if !l.admit(ctx, ticker.C) {
			l.keepUnasked(&l.config.Plan[i])
			continue
		}
		all.Go(func() {
			defer func() { <-l.slots }()
			l.serve(ctx, i)
		})
	}
	all.Wait()
	return l.notes
}

// admit waits until the next client may begin, and reports whether it may.
func (l *Load) admit(ctx context.Context, tick <-chan time.Time) bool {
	select {
	case <-tick:
	case <-ctx.Done():
		return false
	}
	select {
	case l.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// serve runs one client.
func (l *Load) serve(ctx context.Context, index int) {
	order := &l.config.Plan[index]
	c := &client{load: l, draw: rand.New(rand.NewPCG(l.config.Seed, uint64(index)+1))}
	path := "/payments"
	if order.Kind == Booking {
		path = "/bookings"
	}
	note := c.insist(ctx, order, path)
	l.keep(note)
	if order.Refund == nil {
		return
	}
	if !note.Succeeded() {
		l.keep(Note{Order: *order.Refund, LastSeen: "the payment did not succeed"})
		return
	}
	location := note.Answers[0].Location
	c.awaitCharge(ctx, order.Account, location)
	l.keep(c.insist(ctx, order.Refund, location+"/refund"))
}

// unasked is the note on an order that was never sent.
const unasked = "there was no time to ask"

// keepUnasked notes an order that was not sent in time, so that it is counted as lost at the end.
func (l *Load) keepUnasked(o *Order) {
	for ; o != nil; o = o.Refund {
		l.keep(Note{Order: *o, LastSeen: unasked})
	}
}

func (l *Load) keep(note Note) {
	if note.Answered() {
		l.answered.Add(1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notes = append(l.notes, note)
}

// target chooses a process at random for one request.
func (l *Load) target() string {
	targets := l.config.Targets()
	return targets[rand.IntN(len(targets))]
}

// Progress is the progress of a run.
type Progress struct {
	// Total and Answered count orders; Sent counts requests.
	Total, Answered, Sent int
	// Faults is the number of faults so far, by kind.
	Faults map[Fault]int
}

// Progress returns the progress of the run. It may be called at any time.
func (l *Load) Progress() Progress {
	return Progress{Total: l.total, Answered: int(l.answered.Load()), Sent: int(l.sent.Load()), Faults: l.faults.all()}
}
