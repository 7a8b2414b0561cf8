package consuming

import (
	"context"
	"log/slog"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
)

// Watch reports the work of a consumer. The zero value reports nothing.
type Watch struct {
	Observer   onceward.Observer
	Propagator onceward.Propagator
	Logger     *slog.Logger // logs panics of the observer
	// Backlog returns how many events wait at the broker after one was handled; nil if this is not known.
	Backlog func() int
}

// timeHeaders are the headers with the time of an event in the bindings of CloudEvents to Kafka, NATS and AMQP.
var timeHeaders = [...]string{"ce_time", "ce-time", "cloudEvents:time", "cloudEvents_time"}

// Handle calls [inbox.Inbox.Handle] in the trace of the message's headers, and reports the result to the observer. It
// calls headers only if they are needed.
func (w Watch) Handle(
	ctx context.Context, box *inbox.Inbox, consumer, eventID string, headers func() map[string]string,
	fn func(ctx context.Context) error,
) (applied bool, err error) {
	if w.Observer == nil && w.Propagator == nil {
		return box.Handle(ctx, consumer, eventID, fn)
	}
	with := headers()
	if w.Propagator != nil {
		ctx = w.Propagator.Extract(ctx, with)
	}
	began := time.Now()
	applied, err = box.Handle(ctx, consumer, eventID, fn)
	if w.Observer != nil {
		w.report(ctx, inbox.HandledEvent{
			Consumer: consumer, EventID: eventID, Applied: applied, Sent: sent(with), Backlog: w.backlog(),
			Elapsed: time.Since(began), Err: err,
		})
	}
	return applied, err
}

func (w Watch) backlog() int {
	if w.Backlog == nil {
		return -1
	}
	return w.Backlog()
}

// report sends an event to the observer. It logs a panic, which would end the process at each delivery of the message.
func (w Watch) report(ctx context.Context, e inbox.HandledEvent) {
	defer func() {
		if p := recover(); p != nil {
			w.Logger.ErrorContext(ctx, "consumer: the observer panicked", "consumer", e.Consumer, "panic", p)
		}
	}()
	w.Observer.Observe(ctx, e)
}

// sent returns the sender's time of the event; zero if the headers have none.
func sent(headers map[string]string) time.Time {
	for _, name := range timeHeaders {
		if at, err := time.Parse(time.RFC3339Nano, headers[name]); err == nil {
			return at
		}
	}
	return time.Time{}
}
