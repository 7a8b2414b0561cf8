package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/store"
)

// laneKey identifies messages that keep their order.
type laneKey struct{ topic, aggregateType, aggregateID string }

// acquired is a message with this worker's lease on it.
type acquired struct {
	*Claimed
	lease *heldLease
	// sent is when the claim was sent.
	sent time.Time
	// counted means that the store has counted this attempt, as it does for the first message of a run.
	counted bool
}

// run is a sequence of messages that are delivered one after the other: messages of one aggregate, or a single message.
type run struct {
	route    *routeState
	messages []acquired
	claimed  time.Time
	taken    atomic.Bool
	// turn is the lease of the message whose delivery began last.
	turn atomic.Pointer[heldLease]
}

// takes reports whether the caller gets the run. A run is taken once:
// to deliver it, or to give it back because it has waited for too long.
func (r *run) takes() bool { return r.taken.CompareAndSwap(false, true) }

// start delivers claimed messages: messages of one aggregate one after the other, all other messages concurrently.
func (s *workerRun) start(claimed []Claimed, until time.Time) {
	now, ordered := time.Now(), make(map[laneKey]*run)
	for i := range claimed {
		c := &claimed[i]
		route := s.routes[c.Topic]
		// A message that a person added again by hand may come before
		// the first message whose attempt the store has counted.
		t := acquired{
			Claimed: c, lease: s.track(route, c, until), sent: until.Add(-s.config.Lease), counted: c.Attempts > 0,
		}
		if !c.Ordered() {
			s.begin(&run{route: route, messages: []acquired{t}, claimed: now})
			continue
		}
		key := laneKey{c.Topic, c.AggregateType, c.AggregateID}
		r := ordered[key]
		if r == nil {
			r = &run{route: route, claimed: now}
			ordered[key] = r
		} else {
			t.counted = false
		}
		r.messages = append(r.messages, t)
	}
	for _, r := range ordered {
		s.begin(r)
	}
}

// begin starts a run that is complete. The run waits for a slot.
func (s *workerRun) begin(r *run) {
	for _, t := range r.messages {
		t.lease.joins(r)
	}
	s.deliveries.Go(func() { s.deliverRun(r) })
}

// deliverRun delivers the messages of a run. If a message fails, the rest waits. A message that was attempted
// before is delivered alone: if it is the message that kills workers, other messages must not suffer from it.
func (s *workerRun) deliverRun(r *run) {
	route := r.route
	route.slots <- struct{}{}
	defer s.leave(route)
	if !r.takes() {
		return // it was given back
	}
	messages := r.messages
	if messages[0].Attempts > 1 && len(messages) > 1 {
		s.release(route, messages[1:], StateBehind)
		messages = messages[:1]
	}
	for i, t := range messages {
		if s.stopping.Load() {
			s.release(route, messages[i:], StateReady)
			return
		}
		if !s.deliver(route, t) {
			s.release(route, messages[i+1:], StateBehind)
			return
		}
	}
}

// leave frees a slot.
func (s *workerRun) leave(route *routeState) {
	<-route.slots
	if route.jammed.Load() && route.jammed.CompareAndSwap(true, false) {
		s.lookAgain()
	}
}

// release returns messages that were not started. This does not count as an attempt.
func (s *workerRun) release(route *routeState, run []acquired, state State) {
	for _, t := range run {
		attempts := t.Attempts
		if t.counted {
			attempts--
		}
		s.finish.add(finished{
			acquired: t, route: route,
			outcome: Outcome{Lease: t.lease.Lease, State: state, Attempts: attempts},
		})
	}
}

// deliver delivers one message, and reports whether the next message of its aggregate may follow.
func (s *workerRun) deliver(route *routeState, t acquired) (done bool) {
	attempts := t.Attempts
	if !t.counted {
		attempts++
	}
	end := finished{acquired: t, route: route, attempts: attempts}
	if err := t.lease.alive(); err != nil {
		s.lost(end, err)
		return false
	}
	if attempts > route.MaxAttempts {
		end.attempts-- // this attempt is not started
		s.failed(end, Permanent(fmt.Errorf("a delivery was begun %d times, and did not come to an end", end.attempts)))
		return false
	}
	if err := t.readable(); err != nil {
		s.failed(end, err) // another node may have the key, or this node may get it later
		return false
	}
	ctx, cancel := t.lease.begin(s.hard, route.Timeout+s.config.Lease)
	defer cancel()
	ctx, cancelTimeout := context.WithTimeout(ctx, route.Timeout)
	defer cancelTimeout()
	ctx = s.traced(ctx, t.Claimed)
	began := time.Now()
	entry := t.Entry
	entry.Attempts = attempts
	result, err := call(ctx, route.Handler, &Delivery{
		Entry: entry, ClaimedAt: t.Due.Add(-s.config.Lease), sent: t.sent, lease: t.lease,
	})
	end.elapsed = time.Since(began)
	route.took(end.elapsed)
	switch {
	case err == nil:
		return s.succeeded(ctx, end, result)
	case errors.Is(context.Cause(ctx), ErrFenced):
		s.lost(end, fmt.Errorf("%w: %w", ErrFenced, err))
	case errors.Is(err, ErrPermanent) && result.Then != nil:
		s.gaveUp(ctx, end, err, result)
	default:
		s.failed(end, err)
	}
	return false
}

// call runs the handler. A panic is an error of this message and does not
// end the worker. The same is true of a handler that ends its goroutine.
func call(ctx context.Context, h Handler, d *Delivery) (result Result, err error) {
	returned := make(chan struct{})
	err = errors.New("the handler ended its goroutine")
	go func() {
		defer close(returned)
		defer recovered("the handler", &err)
		result, err = h(ctx, d)
	}()
	<-returned
	return result, err
}

// recovered turns a panic of the application into an error. It must be deferred.
func recovered(what string, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%s panicked: %v", what, p)
	}
}

// succeeded records the result of the delivery: first the receiver's id, then everything
// that depends on it, and at the latest with the last step that the message is done.
func (s *workerRun) succeeded(ctx context.Context, end finished, result Result) (done bool) {
	result.ProviderID = shorten(result.ProviderID)
	end.outcome = Outcome{Lease: end.lease.Lease, State: StateDone, Attempts: end.attempts, ProviderID: result.ProviderID}
	if result.Then == nil && result.Settle == nil {
		s.finish.add(end)
		return true
	}
	err := s.conclude(ctx, end, result)
	switch {
	case errors.Is(err, ErrFenced):
		s.lost(end, err)
		return false
	case err != nil:
		s.failed(end, err)
		return false
	case result.Then == nil:
		s.finish.add(end)
	default:
		s.ended(end)
		s.lookAgain()
	}
	return true
}

// conclude carries out a result. The effect has happened, so it must be recorded even if the
// delivery's time or the lease has run out: if another worker has the message, the store
// refuses. A panic of Then rolls back its transaction and is an error of this message.
func (s *workerRun) conclude(ctx context.Context, end finished, result Result) (err error) {
	defer recovered("Result.Then", &err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	defer context.AfterFunc(s.writing, cancel)()
	if result.ProviderID != "" {
		if err := end.lease.record(ctx, result.ProviderID); err != nil {
			return fmt.Errorf("record the receiver's id: %w", err)
		}
	}
	if result.Settle != nil {
		if err := s.settle(ctx, end.Claimed, result.Settle); err != nil {
			return fmt.Errorf("settle the operation: %w", err)
		}
	}
	if result.Then != nil {
		return s.store.FinishMessageTx(ctx, end.outcome, func(ctx context.Context) error {
			return result.Then(contextWithParent(ctx, &end.Entry))
		})
	}
	return nil
}

// settle stores the answer of the operation that added the message, if the operation's record waits for an answer.
// If the operation is still in progress, its handler is about to end: then the message is retried a little later.
func (s *workerRun) settle(ctx context.Context, c *Claimed, done *store.Completion) error {
	reconciler, ok := store.As[store.Reconciler](s.config.Records)
	if !ok {
		return Permanent(errors.New("WorkerConfig.Records has no store whose records can be settled"))
	}
	if c.Origin == (store.ID{}) {
		return Permanent(errors.New("the message was not added by an operation: there is nothing to settle"))
	}
	resolveErr := reconciler.ResolveCompleted(ctx, store.Claim{ID: c.Origin, Attempt: c.OriginAttempt}, done)
	if resolveErr == nil || errors.Is(resolveErr, store.ErrStale) {
		return nil
	}
	rec, err := store.Record{}, error(nil)
	if fenced := (*store.FencedError)(nil); errors.As(resolveErr, &fenced) {
		rec.Attempt, rec.State = fenced.Current, fenced.State
	} else {
		rec, err = s.config.Records.Get(ctx, c.Origin)
	}
	waits := rec.Attempt == c.OriginAttempt && (rec.State == store.StateInProgress || rec.State == store.StateUnknown)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && !waits:
		s.config.Logger.WarnContext(ctx, "outbox: the operation that a message was to settle is settled otherwise",
			"message", c.ID, "error", resolveErr)
		return nil
	default:
		return errors.Join(resolveErr, err)
	}
}

// gaveUp makes the message a dead letter in the transaction of Then. If Then fails, the message is delivered again.
func (s *workerRun) gaveUp(ctx context.Context, end finished, err error, result Result) {
	s.plan(&end, err)
	switch thenErr := s.conclude(ctx, end, Result{Then: result.Then}); {
	case errors.Is(thenErr, ErrFenced):
		s.lost(end, thenErr)
	case thenErr != nil:
		s.failed(end, fmt.Errorf("%w. It was to become a dead letter: %v", thenErr, err))
	default:
		s.logDead(end)
		s.ended(end)
		s.lookAgain()
	}
}

// failed plans another attempt, or gives the message up.
func (s *workerRun) failed(end finished, err error) {
	s.plan(&end, err)
	s.logDead(end)
	s.finish.add(end)
}

// plan decides the next state of a message whose delivery failed.
func (s *workerRun) plan(end *finished, err error) {
	end.err = err
	end.outcome = Outcome{Lease: end.lease.Lease, State: StateReady, Attempts: end.attempts, Error: shorten(err.Error())}
	var asked *retryAfterError
	switch {
	case (errors.Is(err, ErrPermanent) || end.attempts >= end.route.MaxAttempts) && end.route.BlockOnDeadLetter &&
		end.Ordered():
		end.outcome.State = StateHolding
	case errors.Is(err, ErrPermanent) || end.attempts >= end.route.MaxAttempts:
		end.outcome.State = StateDead
	case errors.As(err, &asked):
		end.outcome.After = max(asked.wait, end.route.backoff(end.attempts))
	default:
		end.outcome.After = end.route.backoff(end.attempts)
	}
}

// logDead logs a message that becomes a dead letter.
func (s *workerRun) logDead(end finished) {
	if end.outcome.State != StateReady {
		s.config.Logger.Error("outbox: a message became a dead letter", "message", end.ID, "topic", end.Topic,
			"attempts", end.attempts, "error", end.err)
	}
}

// maxKept is the largest number of characters that are stored of an error or of a receiver's id.
const maxKept = 1000

// shorten turns a text from outside into a text that every database accepts.
func shorten(text string) string {
	clean := []rune(strings.ToValidUTF8(text, "\uFFFD"))
	for i, r := range clean {
		if r == 0 {
			clean[i] = ' '
		}
	}
	return string(clean[:min(len(clean), maxKept)])
}

// lost ends a message that another worker has or will get.
func (s *workerRun) lost(end finished, err error) {
	end.err, end.fenced = err, true
	s.ended(end)
}
