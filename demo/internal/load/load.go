// Package load is what the demo does to a payments API: clients that ask for payments, refunds and bookings, lose their
// connections on the way, and ask again with the same key until they have a definitive answer. Each keeps a note of
// what it asked for and what it was told.
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
	// Plan is what the clients ask for.
	Plan []Order
	// Seed begins the random sequences of the clients, each of which has its own: what one of them does depends on no
	// other.
	Seed uint64
	// Targets are the base URLs of the processes that serve at this moment. It is asked before each request.
	Targets func() []string
	// Every is the time between the starts of two clients.
	Every time.Duration
	// AtOnce bounds the clients that are at it. On a machine that is busy the next one waits, as the load is to show
	// faults and not how slow the machine is.
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

// New prepares a run.
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

// Run lets one client after the other begin, and returns their notes when all have ended. If the context ends first,
// some notes have no answer.
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

// serve is the life of one client.
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

// unasked is what is noted of an order that was never sent.
const unasked = "there was no time to ask"

// keepUnasked notes an order that there was no time for, so that it is missed at the end.
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

// target chooses a process for one request.
func (l *Load) target() string {
	targets := l.config.Targets()
	return targets[rand.IntN(len(targets))]
}

// Progress is how far a run has come.
type Progress struct {
	// Total and Answered count orders; Sent counts requests.
	Total, Answered, Sent int
	// Faults are those of the clients so far.
	Faults map[Fault]int
}

// Progress returns how far the run has come. It may be called at any time.
func (l *Load) Progress() Progress {
	return Progress{Total: l.total, Answered: int(l.answered.Load()), Sent: int(l.sent.Load()), Faults: l.faults.all()}
}
