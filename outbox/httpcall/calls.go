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

// Config configures [Calls]. All workers of a topic need the same configuration.
type Config struct {
	// Outbox stores the operations. Required.
	Outbox *outbox.Outbox
	// Topic is the topic of the messages, and Transport sends them by its profile and within its
	// window. Use one topic for each service: then a service that hangs delays only its own
	// operations. Topic is required; Transport defaults to the transport of the zero [client.Config].
	Topic     string
	Transport *client.Transport
	// Prepare is called before each sending and adds what is not stored, such as credentials. It
	// must not change what the operation means, or as which caller it is sent: services know keys
	// by their callers, so an operation that is sent again as another caller is a new operation.
	// If Prepare returns an error, nothing is sent and the sending is retried. Default: none.
	Prepare func(request *http.Request) error
	// OnSettled receives each operation that was answered or whose outcome is unknown. It is called at least
	// once, and again until it returns nil, also after a crash. It runs in the transaction that ends the message
	// and gets that transaction from its context ([onceward.Tx], or the function of the store's own package), so
	// its writes there happen exactly once. It must be short, because the transaction is open. Default: none.
	OnSettled func(ctx context.Context, o Operation) error
}

// Calls are the durable operations of one service.
type Calls struct {
	config  Config
	profile client.Profile
}

// New returns the operations of a service, or an error if the configuration is invalid.
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

// Enqueue writes a request into the outbox, in a transaction of the application: the request is sent if and only
// if the transaction is committed, and not before. The ID is the ID of the message and also [Operation].ID. For
// another type of transaction, or another place, add the message that [Calls.Message] returns.
func (c *Calls) Enqueue(ctx context.Context, tx *sql.Tx, request *http.Request) (id string, err error) {
	m, err := c.Message(request)
	if err != nil {
		return "", err
	}
	return c.config.Outbox.Add(ctx, tx, m)
}

// maxBackoff is the longest time between two sendings, so that the end of an outage is noticed soon enough.
const maxBackoff = 5 * time.Minute

// Route returns the route for the topic. Its number of attempts has no limit: the window of the key ends them.
func (c *Calls) Route() outbox.Route {
	return outbox.Route{Handler: c.deliver, MaxAttempts: math.MaxInt32, MaxBackoff: maxBackoff}
}

// Resolve answers an operation that became a dead letter because its outcome was unknown, with the answer
// that a person found out. The answer is audited and reported to OnSettled; the operation is not sent.
func Resolve(ctx context.Context, operator *outbox.Operator, who, why, id string, answer Answer) error {
	content, err := (&record{answer: &answer}).encode()
	if err != nil {
		return err
	}
	return operator.Answer(ctx, who, why, id, content)
}
