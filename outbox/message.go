package outbox

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onceward/onceward/store"
)

// Message is something that must happen outside of the database after the transaction that adds it was committed.
type Message struct {
	// Topic chooses the route: workers have a [Route] for each topic. A message
	// without a topic is only for change-data-capture, and no worker takes it.
	Topic string
	// AggregateType and AggregateID name the object of the message, such as "payment" and its
	// id. Messages of one topic about one aggregate are delivered in the order in which they
	// were committed. A message without an AggregateID does not wait for other messages.
	AggregateType string
	AggregateID   string
	// Type is the name of what happened or must be done, such as "payment.created". Required.
	Type string

	// Payload is the content, at most [MaxPayload] bytes, and ContentType is its type. Default: application/json.
	Payload     []byte
	ContentType string
	// Source and Subject are the attributes of CloudEvents with these
	// names. Default: the Source of the [Outbox], and the AggregateID.
	Source  string
	Subject string
	// Headers are sent to the receiver. Their names consist of letters, digits, "-" and "_".
	Headers map[string]string

	// Step distinguishes the messages of one operation: the downstream key is derived from the
	// operation and the step, so that it is the same if the operation runs again. Default: the topic.
	Step string
	// Key is the downstream key, if the receiver has its own name for the effect,
	// such as an order number. Default: a derived or a random key, see [Outbox.Add].
	Key string
	// Delay is the shortest time between adding the message and delivering it.
	Delay time.Duration
}

// These are the limits of a message.
const (
	// MaxPayload is the largest size of a payload.
	MaxPayload = 1 << 20
	// MaxAnswer is the largest size of an answer that is stored with a message.
	MaxAnswer = 1 << 20
	// MaxName is the largest length of each text of a message, except its headers.
	MaxName = 255
	// maxHeaders is the largest size of all headers together.
	maxHeaders = 8 << 10
)

// DefaultContentType is the content type of a message without one.
const DefaultContentType = "application/json"

// check refuses a message that could not be delivered.
func (m *Message) check() error {
	if m.Type == "" {
		return errors.New("outbox: Message.Type is missing: it says what happened, such as \"payment.created\"")
	}
	if len(m.Payload) > MaxPayload {
		return fmt.Errorf("outbox: a payload of %d bytes, and at most %d are allowed: keep it elsewhere and send a reference",
			len(m.Payload), MaxPayload)
	}
	if m.Delay < 0 {
		return fmt.Errorf("outbox: a negative Delay of %s", m.Delay)
	}
	for _, text := range []struct{ name, value string }{
		{"Topic", m.Topic},
		{"AggregateType", m.AggregateType},
		{"AggregateID", m.AggregateID},
		{"Type", m.Type},
		{"ContentType", m.ContentType},
		{"Source", m.Source},
		{"Subject", m.Subject},
		{"Step", m.Step},
		{"Key", m.Key},
	} {
		if err := checkText(text.name, text.value); err != nil {
			return err
		}
	}
	return checkHeaders(m.Headers)
}

// checkText refuses text that some databases, brokers or headers do not accept.
func checkText(name, value string) error {
	switch {
	case len(value) > MaxName:
		return fmt.Errorf("outbox: Message.%s is %d bytes long, and at most %d are allowed", name, len(value), MaxName)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, isControl):
		return fmt.Errorf("outbox: Message.%s %q holds control characters or is not UTF-8", name, value)
	default:
		return nil
	}
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

func checkHeaders(headers map[string]string) error {
	size := 0
	for name, value := range headers {
		size += len(name) + len(value)
		if name == "" || strings.ContainsFunc(name, notInName) {
			return fmt.Errorf("outbox: the name of header %q is not made of letters, digits, \"-\" and \"_\"", name)
		}
		if !utf8.ValidString(value) || strings.ContainsFunc(value, isControl) {
			return fmt.Errorf("outbox: header %q holds control characters or is not UTF-8", name)
		}
	}
	if size > maxHeaders {
		return fmt.Errorf("outbox: headers of %d bytes, and at most %d are allowed", size, maxHeaders)
	}
	return nil
}

func notInName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// Ordered reports whether the message waits for earlier messages of its aggregate.
func (m *Message) Ordered() bool { return m.AggregateID != "" }

// State is the state of a message.
type State uint8

// These are the states of a message.
const (
	// StateReady means that the message is delivered when it is due.
	StateReady State = iota
	// StateLeased means that a worker has taken the message. If its lease runs out, another worker takes it.
	StateLeased
	// StateBehind means that the message waits for an earlier message of its aggregate.
	StateBehind
	// StateHolding means that the message is a dead letter that blocks its aggregate.
	StateHolding
	// StateDone means that the message was delivered.
	StateDone
	// StateDead means that the message is a dead letter: it is not delivered unless an operator replays it.
	StateDead
	// StateCaptured means that the message has no topic and is for change-data-capture.
	StateCaptured
)

// String returns the name of the state.
func (s State) String() string {
	names := [...]string{"ready", "leased", "behind", "holding", "done", "dead", "captured"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", s)
}

// Entry is a message in its stored form.
type Entry struct {
	Message
	// ID identifies the message permanently, also for its receivers: a UUID.
	ID string
	// Origin is the operation that added the message, and OriginAttempt
	// is its attempt. Both are zero if no operation added the message.
	Origin        store.ID
	OriginAttempt int64
	// DownstreamKey is the idempotency key to send with the message. It is the same for every delivery.
	DownstreamKey string
	// CreatedAt is when the message was added, by the store's clock.
	CreatedAt time.Time

	// State is the state of the message. Due is when the message
	// will be delivered, when its lease ends, or when it was done.
	State State
	Due   time.Time
	// Attempts is how often a delivery was started, as far as that is known.
	Attempts int
	// ProviderID is the receiver's id for the effect.
	ProviderID string
	// Answer is the part of the receiver's answer that the handler stored with [Delivery.RecordAnswer].
	Answer []byte
	// LastError is the reason why the last delivery failed.
	LastError string

	// Unreadable is the reason why the store cannot open a sealed entry, or nil.
	// Payload and headers are then missing, and the message is not delivered.
	Unreadable error

	// unsealed is the size of payload and headers before they were sealed.
	unsealed int
}

// Seal replaces payload and headers with a sealed value. It is for a [Sealer].
func (e *Entry) Seal(value []byte) {
	e.unsealed = e.size()
	e.Payload, e.Headers = value, nil
}

// size returns the size of payload and headers before sealing, so that the limits are the same with and without a seal.
func (e *Entry) size() int {
	if e.unsealed > 0 {
		return e.unsealed
	}
	size := len(e.Payload)
	for name, value := range e.Headers {
		size += len(name) + len(value)
	}
	return size
}

// OfOperation reports whether the operation with this ID may have added the
// message: an entry with another origin was added by another operation.
func (e *Entry) OfOperation(id store.ID) bool { return e.Origin == store.ID{} || e.Origin == id }

// readable returns an error for an entry whose content is sealed, because its receiver could not read it.
func (e *Entry) readable() error {
	if e.Unreadable == nil && store.IsSealed(e.Payload) {
		return store.ErrSealed
	}
	return e.Unreadable
}
