package httpcall

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/outbox"
)

// Config configures [Calls]. All workers of a topic have the same.
type Config struct {
	// Outbox keeps the operations. Required.
	Outbox *outbox.Outbox
	// Topic is the topic of their messages, and Transport sends them, by its profile and within its window. Each service
	// has a topic of its own: then a service that hangs delays its own operations alone. Required; default: the transport
	// of the zero [client.Config].
	Topic     string
	Transport *client.Transport
	// Prepare is called for each sending, and adds what is not kept, such as credentials. It must not change what the
	// operation means, nor who sends it: services know keys by their callers, and an operation that is sent again as
	// another caller is a new operation. After its error nothing is sent, and the sending is tried again. Default: none.
	Prepare func(request *http.Request) error
	// OnSettled gets each operation that was answered or whose outcome is unknown: at least once, and again until it
	// returns nil, also after a crash. It runs in the transaction that ends the message, with that transaction in its
	// context ([onceward.Tx], or the way of the store's own package): what it writes there is written once. It must be
	// short, because that transaction is open. Default: none.
	OnSettled func(ctx context.Context, o Operation) error
}

// Calls are the durable operations of one service.
type Calls struct {
	config  Config
	profile client.Profile
}

// New returns the operations of a service, or an error if the configuration cannot be right.
func New(c Config) (*Calls, error) {
	switch {
	case c.Outbox == nil:
		return nil, errors.New("httpcall: Config.Outbox is missing: it keeps the operations")
	case c.Topic == "":
		return nil, errors.New("httpcall: Config.Topic is missing: workers find the operations by it")
	}
	if c.Transport == nil {
		var err error
		if c.Transport, err = client.New(client.Config{}); err != nil {
			return nil, err
		}
	}
	return &Calls{config: c, profile: c.Transport.Profile()}, nil
}

// Enqueue writes a request into the outbox, in a transaction of the application: it is sent if and only if that is
// committed, and not before. The ID is the message's, and [Operation].ID. For another type of transaction, or another
// place, add what [Calls.Message] returns.
func (c *Calls) Enqueue(ctx context.Context, tx *sql.Tx, request *http.Request) (id string, err error) {
	m, err := c.Message(request)
	if err != nil {
		return "", err
	}
	return c.config.Outbox.Add(ctx, tx, m)
}

// maxBackoff is the longest time between two sendings: an outage of a service is noticed to be over as soon.
const maxBackoff = 5 * time.Minute

// Route returns the route for the topic. Its attempts have no limit: the window of the key ends them.
func (c *Calls) Route() outbox.Route {
	return outbox.Route{Handler: c.deliver, MaxAttempts: math.MaxInt32, MaxBackoff: maxBackoff}
}

// Resolve gives an operation that is a dead letter, because its outcome was unknown, the answer that a person found out.
// It is audited, reported to OnSettled and never sent.
func Resolve(ctx context.Context, operator *outbox.Operator, who, why, id string, answer Answer) error {
	content, err := (&record{answer: &answer}).encode()
	if err != nil {
		return err
	}
	return operator.Answer(ctx, who, why, id, content)
}
