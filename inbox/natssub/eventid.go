package natssub

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// HeaderEventID returns the event's ID as the NATS binding of CloudEvents puts it into the header ce-id, or else the message
// ID that the server dedups by.
func HeaderEventID(m jetstream.Msg) (string, error) {
	if value := header(m.Headers(), "ce-id"); value != "" {
		return decode(value)
	}
	if value := m.Headers().Get(jetstream.MsgIDHeader); value != "" {
		return value, nil
	}
	return "", errors.New("natssub: the message has neither a header ce-id nor a Nats-Msg-Id")
}

// header returns a header whatever the case of its name, which senders differ in.
func header(all nats.Header, name string) string {
	if value := all.Get(name); value != "" {
		return value
	}
	for other := range all {
		if strings.EqualFold(other, name) {
			return all.Get(other)
		}
	}
	return ""
}

var unquote = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// decode undoes what the binding does to values: percent-encoding, and in older versions double quotes.
func decode(value string) (string, error) {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		value = unquote.Replace(value[1 : len(value)-1])
	}
	decoded, err := url.PathUnescape(value)
	if err != nil || !utf8.ValidString(decoded) {
		return "", fmt.Errorf("natssub: the header ce-id %q is not encoded as CloudEvents wants it", value)
	}
	return decoded, nil
}
