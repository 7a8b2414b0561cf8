package natspub

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward/internal/cloudevents"
	"github.com/onceward/onceward/outbox"
)

// makeMessage writes an event as a message, by the binary mode of the binding.
func makeMessage(subject string, e *outbox.Event) (*nats.Msg, error) {
	message := &nats.Msg{Subject: subject, Data: e.Data, Header: nats.Header{}}
	message.Header.Set(jetstream.MsgIDHeader, e.ID)
	for _, a := range e.Attributes() {
		message.Header.Set("ce-"+a.Name, cloudevents.PercentEncode(a.Value))
	}
	if e.ContentType != "" {
		message.Header.Set("ce-datacontenttype", cloudevents.PercentEncode(e.ContentType))
	}
	for name, value := range e.Headers {
		if reserved(name) {
			return nil, fmt.Errorf("natspub: the message's header %q is reserved", name)
		}
		message.Header.Set(name, value)
	}
	return message, nil
}

// reserved reports whether a header is not for a message to set: those of CloudEvents; those that are commands to the server,
// such as to purge a stream; and those by which clients tell a status of the server, or an event in structured mode.
func reserved(name string) bool {
	switch name = strings.ToLower(name); name {
	case "status", "description", "content-type":
		return true
	default:
		return strings.HasPrefix(name, "ce-") || strings.HasPrefix(name, "nats-")
	}
}
