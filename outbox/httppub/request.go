package httppub

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/onceward/onceward/internal/cloudevents"
	"github.com/onceward/onceward/outbox"
)

// userAgent is the User-Agent of requests, unless the [Config] sets another one.
const userAgent = "Onceward"

// reservedNames are headers that a message cannot set: this package's own headers, the
// receiver's credentials, and headers about the connection and the framing of the request.
var reservedNames = map[string]bool{
	"Authorization": true, "Content-Type": true, "Content-Length": true, "Host": true, "Idempotency-Key": true,
	"Webhook-Id": true, "Webhook-Timestamp": true, "Webhook-Signature": true,
	"Connection": true, "Expect": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// reserved reports whether a message must not set the header with this canonical name.
func reserved(name string) bool { return reservedNames[name] || strings.HasPrefix(name, "Ce-") }

// request makes the HTTP request of an event, signed with the current time.
func (p *Publisher) request(ctx context.Context, target *url.URL, e *outbox.Event) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(e.Data))
	if err != nil {
		return nil, outbox.Permanent(fmt.Errorf("httppub: %s: %w", shown(target), withoutURL(err)))
	}
	header := request.Header
	header.Set("User-Agent", userAgent)
	for name, values := range p.config.Header {
		header[http.CanonicalHeaderKey(name)] = values
	}
	describe(header, e)
	if err := carry(header, e.Headers); err != nil {
		return nil, outbox.Permanent(err)
	}
	if err := p.sign(header, e, p.config.Now()); err != nil {
		return nil, err
	}
	return request, nil
}

// describe sets the headers that describe the event, by the HTTP binding of CloudEvents in its binary mode.
func describe(header http.Header, e *outbox.Event) {
	for _, a := range e.Attributes() {
		header.Set("Ce-"+a.Name, cloudevents.PercentEncode(a.Value))
	}
	if e.ContentType != "" {
		header.Set("Content-Type", e.ContentType)
	}
	if e.IdempotencyKey != "" {
		header.Set("Idempotency-Key", e.IdempotencyKey)
	}
}

// carry adds the message's own headers. A header that would overwrite another one is refused
// and not left out, because otherwise the receiver would not see what the sender meant.
func carry(header http.Header, own map[string]string) error {
	for name, value := range own {
		canonical := http.CanonicalHeaderKey(name)
		if _, taken := header[canonical]; taken || reserved(canonical) {
			return fmt.Errorf("httppub: the message's header %q is reserved or there twice", name)
		}
		header.Set(canonical, value)
	}
	return nil
}
