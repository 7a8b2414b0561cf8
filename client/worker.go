package client

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/backoff"
)

// WorkerConfig configures a [Worker]. The zero value is good for a service that is protected by Onceward.
type WorkerConfig struct {
	// Transport sends all operations of the journal, with the header of its profile and within its window. Default: that
	// of the zero [Config].
	Transport *Transport
	// Prepare is called for each sending, and adds what the journal does not keep, such as credentials. It must not
	// change what the operation means, nor as whom it is sent: services know keys by their callers, and one that is sent
	// again as another caller is a new operation. So all workers of a journal have the same. Its error is one of the
	// sending: it is tried again later. Default: none.
	Prepare func(request *http.Request) error
	// OnSettled is told of each operation that was answered, or whose outcome is unknown: at least once, and again until
	// it returns nil, also after a crash. It must end with its context. All workers of a journal have the same. Default:
	// none; then operations count as told when they are settled.
	OnSettled func(ctx context.Context, o Operation) error
	// SendTimeout bounds one sending, with the retries of the Transport within it, and each call of OnSettled. What a
	// worker was at that died is taken up by another after twice that. Default: 30s.
	SendTimeout time.Duration
	// MaxSending is how many operations are under way at once, and MaxPerHost how many of them at one host, so that one
	// that hangs delays its own operations alone. Default: 64 and 8.
	MaxSending, MaxPerHost int
	// MinBackoff and MaxBackoff are how long an operation that was not answered is left alone, at first and at most.
	// Default: 1s and 5m.
	MinBackoff, MaxBackoff time.Duration
	// Poll is how often the worker looks for operations that it was not told of by [Worker.Wake]. Default: 500ms.
	Poll time.Duration
	// Observer is told of the journal, and of what sendings come to; what the Transport does it tells its own. Default:
	// that of the Transport.
	Observer Observer
	// Logger gets operations that became unknown, and what went wrong with the journal or with OnSettled. Default:
	// [slog.Default].
	Logger *slog.Logger
}

// The defaults of a worker.
const (
	defaultSendTimeout      = 30 * time.Second
	defaultMaxSending       = 64
	defaultMaxPerHost       = 8
	defaultWorkerMinBackoff = time.Second
	defaultWorkerMaxBackoff = 5 * time.Minute
	defaultPoll             = 500 * time.Millisecond
)

// journalTimeout bounds each question to the journal: one that hangs, as when the other end of its connection has lost
// its power, is asked again on another.
const journalTimeout = 10 * time.Second

func (c WorkerConfig) withDefaults() (WorkerConfig, error) {
	switch {
	case c.SendTimeout < 0 || c.Poll < 0:
		return c, misconfigured("a send timeout of %v, or a poll of %v, cannot be negative", c.SendTimeout, c.Poll)
	case c.MaxSending < 0 || c.MaxPerHost < 0:
		return c, misconfigured("%d operations under way, and %d at a host, cannot be negative", c.MaxSending, c.MaxPerHost)
	case c.MinBackoff < 0 || c.MaxBackoff < 0 || c.MaxBackoff != 0 && c.MaxBackoff < c.MinBackoff:
		return c, misconfigured("a backoff from %v to %v", c.MinBackoff, c.MaxBackoff)
	}
	if c.Transport == nil {
		var err error
		if c.Transport, err = New(Config{}); err != nil {
			return c, err
		}
	}
	if c.Observer == nil {
		c.Observer = c.Transport.config.Observer
	}
	setDefault(&c.SendTimeout, defaultSendTimeout)
	setDefault(&c.MaxSending, defaultMaxSending)
	setDefault(&c.MaxPerHost, defaultMaxPerHost)
	setDefault(&c.MinBackoff, defaultWorkerMinBackoff)
	setDefault(&c.MaxBackoff, max(defaultWorkerMaxBackoff, c.MinBackoff))
	setDefault(&c.Poll, defaultPoll)
	setDefault(&c.Logger, slog.Default())
	return c, nil
}

// Worker sends the operations of a journal until they are answered, and writes their answers down. Any number of them,
// on any number of nodes, may share a journal: each operation is claimed by one at a time. One that was paused, and
// comes back to an operation that another has taken up, may send it once more, with the same key, and changes nothing.
type Worker struct {
	journal Journal
	config  WorkerConfig
	wake    chan struct{}
	sending sync.WaitGroup

	mu      sync.Mutex
	busy    int
	perHost map[string]int
	waiting map[string][]chan struct{} // by key, for those who wait in this process
	report  Report
}

// Report counts what a run did.
type Report struct {
	// Answered, Unknown and Postponed count operations by what sending them came to, Told those of which OnSettled was
	// told, Fenced those that another worker had taken up, and Failed those of which nothing could be written down.
	Answered, Unknown, Postponed, Told, Fenced, Failed int
}

// NewWorker returns a worker, or an error that wraps [ErrMisconfigured].
func NewWorker(journal Journal, config WorkerConfig) (*Worker, error) {
	if journal == nil {
		return nil, misconfigured("the worker has no journal")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Worker{
		journal: journal, config: config, wake: make(chan struct{}, 1), perHost: make(map[string]int),
		waiting: make(map[string][]chan struct{}),
	}, nil
}

// Wake makes a worker that runs in this process look at once. Call it after the commit of what was enqueued; what is
// not told of is found by polling.
func (w *Worker) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run works until the context ends. Then what is under way is cut off and left to be sent again at once, by this worker
// or another: with the same key, so that it is harmless. A journal that fails is asked again.
func (w *Worker) Run(ctx context.Context) error {
	defer w.sending.Wait()
	if w.config.Observer != nil {
		w.sending.Go(func() { w.watch(ctx) })
	}
	failures := 0
	for ctx.Err() == nil {
		_, err := w.take(ctx)
		pause := w.config.Poll
		if err != nil && ctx.Err() == nil {
			failures++
			pause = backoff.Jittered(w.config.MinBackoff, w.config.MaxBackoff, failures)
			w.config.Logger.ErrorContext(ctx, "client: the journal cannot be used", "error", err)
		} else {
			failures = 0
		}
		w.pause(ctx, pause, err == nil)
	}
	return nil
}

// pause waits until there may be something to do.
func (w *Worker) pause(ctx context.Context, d time.Duration, wakes bool) {
	wake := w.wake
	if !wakes {
		wake = nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// countEvery is how often a worker that is observed counts what is open in its journal.
const countEvery = time.Minute

// watch tells the observer what is open in the journal until the context ends.
func (w *Worker) watch(ctx context.Context) {
	for again := true; again; again = backoff.Sleep(ctx, countEvery) {
		counting, cancel := context.WithTimeout(ctx, journalTimeout)
		stats, err := w.journal.Stats(counting)
		cancel()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			w.config.Logger.WarnContext(ctx, "client: the journal could not be counted", "error", err)
		default:
			w.config.Observer.ObserveClient(ctx, CountedEvent{stats})
		}
	}
}

// RunOnce sends what is due, waits for what comes of it, and says that. Operations that are to be sent again later are
// left for later, as are all when the journal fails. It is not to be called while [Worker.Run] runs.
func (w *Worker) RunOnce(ctx context.Context) (Report, error) {
	w.count(func(r *Report) { *r = Report{} })
	for {
		taken, err := w.take(ctx)
		w.sending.Wait()
		report := Report{}
		w.count(func(r *Report) { report = *r })
		if err != nil || taken == 0 || report.Failed > 0 {
			return report, err
		}
	}
}

// take claims what is due, as far as there are places, and begins to send it.
func (w *Worker) take(ctx context.Context) (taken int, err error) {
	began := time.Now()
	taken, err = w.takeAll(ctx)
	if w.config.Observer != nil && ctx.Err() == nil {
		w.config.Observer.ObserveClient(ctx, ClaimedEvent{Count: taken, Err: err, Elapsed: time.Since(began)})
	}
	return taken, err
}

// takeAll is take for each host. They come in a random order, so that none has the first places always.
func (w *Worker) takeAll(ctx context.Context) (taken int, err error) {
	asking, cancel := context.WithTimeout(ctx, journalTimeout)
	hosts, err := w.journal.DueHosts(asking)
	cancel()
	if err != nil {
		return 0, err
	}
	rand.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	for _, host := range hosts {
		n, err := w.takeOf(ctx, host)
		taken += n
		if err != nil {
			return taken, err
		}
	}
	return taken, nil
}

// takeOf claims what is due of a host.
func (w *Worker) takeOf(ctx context.Context, host string) (taken int, err error) {
	places := w.enter(host)
	if places == 0 {
		return 0, nil
	}
	began := time.Now() // the lease counts from before the journal was asked
	asking, cancel := context.WithTimeout(ctx, journalTimeout)
	claimed, err := w.journal.Claim(asking, host, places, w.lease())
	cancel()
	for range places - len(claimed) {
		w.leave(host)
	}
	for i := range claimed {
		w.sending.Go(func() {
			defer w.Wake() // there is a place again
			defer w.leave(host)
			w.attend(ctx, &claimed[i], began)
		})
	}
	return len(claimed), err
}

// lease is how long a claim lasts: long enough to send the operation and to write down what came of it.
func (w *Worker) lease() time.Duration { return 2 * w.config.SendTimeout }

// enter takes all places that a host can have now.
func (w *Worker) enter(host string) (places int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	places = max(0, min(w.config.MaxPerHost-w.perHost[host], w.config.MaxSending-w.busy))
	w.busy += places
	w.perHost[host] += places
	return places
}

// leave releases a place.
func (w *Worker) leave(host string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy--
	if w.perHost[host]--; w.perHost[host] == 0 {
		delete(w.perHost, host)
	}
}

// count changes the report.
func (w *Worker) count(change func(r *Report)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.report)
}

// Wait waits until an operation is settled, by this worker or by another, and returns it: answered, or unknown. Call it
// after the commit of the transaction that enqueued it: before, the error is [ErrNotFound].
func (w *Worker) Wait(ctx context.Context, key string) (Operation, error) {
	settled := make(chan struct{}, 1)
	w.mu.Lock()
	w.waiting[key] = append(w.waiting[key], settled)
	w.mu.Unlock()
	defer w.forget(key, settled)
	for {
		o, err := w.journal.Get(ctx, key)
		switch {
		case err != nil && ctx.Err() != nil:
			return o, errors.Join(context.Cause(ctx), errPending)
		case err != nil || o.State != StatePending:
			return o, err
		}
		timer := time.NewTimer(w.config.Poll) // another process may settle it
		select {
		case <-settled:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return o, errors.Join(context.Cause(ctx), errPending)
		}
		timer.Stop()
	}
}

// errPending goes with the end of a context, which says nothing about the operation.
var errPending = errors.New("client: the operation may be pending still, and is sent on by the workers")

// forget ends a wait.
func (w *Worker) forget(key string, settled chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := w.waiting[key][:0]
	for _, other := range w.waiting[key] {
		if other != settled {
			kept = append(kept, other)
		}
	}
	if len(kept) == 0 {
		delete(w.waiting, key)
		return
	}
	w.waiting[key] = kept
}

// tellWaiting wakes those who wait for an operation in this process.
func (w *Worker) tellWaiting(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, settled := range w.waiting[key] {
		select {
		case settled <- struct{}{}:
		default:
		}
	}
}
