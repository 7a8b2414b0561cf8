package outbox

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onceward/onceward/store"
)

// Message is something that is to happen outside of the database once the transaction that adds it has been committed.
type Message struct {
	// Topic chooses who delivers it: workers have a [Route] for each topic. A message without one is for
	// change-data-capture alone, and no worker takes it.
	Topic string
	// AggregateType and AggregateID name the thing that the message is about, such as "payment" and its id. Messages of
	// one topic about one aggregate are delivered in the order in which they were committed. Without an AggregateID a
	// message waits for no other.
	AggregateType string
	AggregateID   string
	// Type is what happened or is to be done, such as "payment.created". Required.
	Type string

	// Payload is the content, at most [MaxPayload] bytes, and ContentType says what it is. Default: application/json.
	Payload     []byte
	ContentType string
	// Source and Subject are the attributes of CloudEvents with these names. Default: the Source of the [Outbox], and
	// the AggregateID.
	Source  string
	Subject string
	// Headers go along to the receiver. Their names are made of letters, digits, "-" and "_".
	Headers map[string]string

	// Step tells the messages of one operation apart: the downstream key is derived from the operation and the step, so
	// that it is the same if the operation ever runs again. Default: the topic.
	Step string
	// Key is the downstream key, where the receiver knows the effect under a name of its own, such as an order's number.
	// Default: derived, or random, as [Outbox.Add] says.
	Key string
	// Delay is how long after it was added the message is due at the earliest.
	Delay time.Duration
}

// The limits of a message.
const (
	// MaxPayload is how large a payload may be.
	MaxPayload = 1 << 20
	// MaxAnswer is how large an answer may be that is kept with a message.
	MaxAnswer = 1 << 20
	// MaxName is how long each of the texts of a message may be, but for its headers.
	MaxName = 255
	// maxHeaders is how long the headers may be together.
	maxHeaders = 8 << 10
)

// DefaultContentType is that of a message that does not say.
const DefaultContentType = "application/json"

// check refuses what could not be delivered.
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

// checkText refuses what not every database, broker and header takes.
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

// Ordered reports whether the message waits for earlier ones of its aggregate.
func (m *Message) Ordered() bool { return m.AggregateID != "" }

// State is where a message stands.
type State uint8

// The states of a message.
const (
	// StateReady is a message that is delivered when it is due.
	StateReady State = iota
	// StateLeased is one that a worker has taken. If its lease runs out, another worker takes it.
	StateLeased
	// StateBehind is one that waits for an earlier message of its aggregate.
	StateBehind
	// StateHolding is a dead letter that holds up its aggregate.
	StateHolding
	// StateDone is one that was delivered.
	StateDone
	// StateDead is a dead letter: it is not delivered until an operator says so.
	StateDead
	// StateCaptured is one without a topic, for change-data-capture.
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

// Entry is a message as it is kept.
type Entry struct {
	Message
	// ID names the message for ever, also towards those who receive it: a UUID.
	ID string
	// Origin is the operation that added the message, and OriginAttempt its attempt. Both are zero if none did.
	Origin        store.ID
	OriginAttempt int64
	// DownstreamKey is the idempotency key to send along: the same for every delivery.
	DownstreamKey string
	// CreatedAt is when the message was added, by the store's clock.
	CreatedAt time.Time

	// State is where it stands, and Due when it is delivered, when its lease ends, or when it was done.
	State State
	Due   time.Time
	// Attempts is how often a delivery was begun, as far as that is known.
	Attempts int
	// ProviderID is the id that the receiver gave to the effect.
	ProviderID string
	// Answer is what the handler has kept of the receiver's answer, by [Delivery.RecordAnswer].
	Answer []byte
	// LastError is why the last delivery failed.
	LastError string

	// Unreadable is why the store that has the entry sealed cannot open it: nil if it can. Payload and headers are
	// missing then, and it is not delivered.
	Unreadable error

	// unsealed is how large payload and headers were before they were sealed.
	unsealed int
}

// Seal puts a sealed value in the place of payload and headers. It is for a [Sealer].
func (e *Entry) Seal(value []byte) {
	e.unsealed = e.size()
	e.Payload, e.Headers = value, nil
}

// size is how large payload and headers are, before they are sealed: limits are the same with a seal and without.
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

// OfOperation reports whether the operation of that ID may have added the message: one with another origin was added
// by another operation.
func (e *Entry) OfOperation(id store.ID) bool { return e.Origin == store.ID{} || e.Origin == id }

// readable returns an error for an entry whose content is sealed: its receiver could not read it.
func (e *Entry) readable() error {
	if e.Unreadable == nil && store.IsSealed(e.Payload) {
		return store.ErrSealed
	}
	return e.Unreadable
}
