package consuming

import (
	"context"
	"log/slog"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
)

// Watch is who is told of what a consumer does. The zero value tells no one.
type Watch struct {
	Observer   onceward.Observer
	Propagator onceward.Propagator
	Logger     *slog.Logger // of panics of the observer
	// Backlog says how many events wait at the broker once one was handled; nil if that is not known.
	Backlog func() int
}

// timeHeaders are where the bindings of CloudEvents to Kafka, NATS and AMQP put the time of an event.
var timeHeaders = [...]string{"ce_time", "ce-time", "cloudEvents:time", "cloudEvents_time"}

// Handle is [inbox.Inbox.Handle] in the trace that the headers of the message tell of, and tells the observer. The
// headers are asked for if they are needed.
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
		w.tell(ctx, inbox.HandledEvent{
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

// tell tells the observer. A panic of it is logged: it would end the process each time the message comes.
func (w Watch) tell(ctx context.Context, e inbox.HandledEvent) {
	defer func() {
		if p := recover(); p != nil {
			w.Logger.ErrorContext(ctx, "consumer: the observer panicked", "consumer", e.Consumer, "panic", p)
		}
	}()
	w.Observer.Observe(ctx, e)
}

// sent is when the sender says that it made the event; zero if it does not.
func sent(headers map[string]string) time.Time {
	for _, name := range timeHeaders {
		if at, err := time.Parse(time.RFC3339Nano, headers[name]); err == nil {
			return at
		}
	}
	return time.Time{}
}
