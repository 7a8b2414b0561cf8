package httpcall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/outbox"
)

// ErrSecretHeader is returned for a request that would put a secret into the outbox. The secret would stay
// there, and would still be sent after it was changed. Let [Config].Prepare add such headers to each sending.
var ErrSecretHeader = errors.New("httpcall: a durable operation keeps no credentials: " +
	"let Config.Prepare add them to each sending")

// secretHeaders are the headers that hold credentials, by definition or by convention.
var secretHeaders = []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key"}

// hostHeader is the header field that stores the Host of a request, where it differs from the host of the URL.
const hostHeader = "Host"

// longestDerived is the length of the longest key that the outbox derives.
const longestDerived = 44

// Message makes the message of a request and reads its body. The payload is the request in the form of HTTP/1.1,
// with the whole URL. The downstream key is the key of the request, from [client.WithKey] or its header. Without
// a key, the outbox derives one from the operation of Onceward that adds the message, or makes a random one.
//
// The request may be used again, for example when a transaction is repeated. The message may be changed
// before it is added: with an AggregateID, for example, operations are sent one after the other.
func (c *Calls) Message(request *http.Request) (m outbox.Message, err error) {
	if err := check(request); err != nil {
		return m, err
	}
	key, given, err := c.profile.Key(request)
	switch {
	case err != nil:
		return m, err
	case !given && c.profile.MaxLength < longestDerived:
		return m, fmt.Errorf("%w: %s allows %d characters: give the request one", client.ErrBadKey, c.profile.Name,
			c.profile.MaxLength)
	}
	body, err := readBody(request)
	if err != nil {
		return m, err
	}
	o := Operation{Method: request.Method, URL: request.URL.String(), Header: request.Header.Clone(), Body: body}
	if o.Method == "" {
		o.Method = http.MethodGet // as in net/http
	}
	if o.Header == nil {
		o.Header = make(http.Header)
	}
	o.Header.Del(c.profile.Header)
	o.Header.Del(hostHeader) // net/http does not send it
	if request.Host != "" && request.Host != request.URL.Host {
		o.Header.Set(hostHeader, request.Host)
	}
	if _, err := o.request(request.Context()); err != nil {
		return m, fmt.Errorf("httpcall: the request cannot be sent: %w", err)
	}
	payload, err := wire(o.Method+" "+o.URL, o.Header, body)
	if err != nil {
		return m, err
	}
	return outbox.Message{
		Topic: c.config.Topic, Type: o.Method + " " + request.URL.Host, Key: key,
		ContentType: "message/http", Payload: payload,
	}, nil
}

// check refuses a request that could not be sent later by another process.
func check(request *http.Request) error {
	target := request.URL
	switch {
	case target == nil || target.Host == "" || target.Scheme != "https" && target.Scheme != "http":
		return fmt.Errorf("httpcall: %q is not the whole URL of a server", target.Redacted())
	case target.User != nil:
		return fmt.Errorf("%w: the URL has some", ErrSecretHeader)
	}
	for _, name := range secretHeaders {
		if request.Header.Get(name) != "" {
			return fmt.Errorf("%w: %s", ErrSecretHeader, name)
		}
	}
	return checkHeader(request.Header)
}

// checkHeader refuses fields that net/http would refuse at each sending. Its errors do not contain the fields' values.
func checkHeader(header http.Header) error {
	for name, values := range header {
		if name == "" || strings.ContainsFunc(name, notInName) {
			return fmt.Errorf("httpcall: %q is not the name of a header field", name)
		}
		for _, value := range values {
			if strings.ContainsFunc(value, isControl) {
				return fmt.Errorf("httpcall: the header field %s has a control character in its value", name)
			}
		}
	}
	return nil
}

// notInName reports whether a character is not allowed in a token (RFC 9110, section 5.6.2).
func notInName(r rune) bool {
	letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// readBody reads the body and gives the request a new body that can be read again.
func readBody(request *http.Request) ([]byte, error) {
	if request.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(request.Body, outbox.MaxPayload+1))
	if err := errors.Join(err, request.Body.Close()); err != nil {
		return nil, fmt.Errorf("httpcall: read the body to enqueue: %w", err)
	}
	switch {
	case len(body) > outbox.MaxPayload:
		return nil, fmt.Errorf("httpcall: the body of a durable operation has more than %d bytes", outbox.MaxPayload)
	case request.ContentLength > 0 && request.ContentLength != int64(len(body)):
		return nil, fmt.Errorf("httpcall: the request body has %d bytes, and not %d as announced", len(body),
			request.ContentLength)
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// request makes the request of one sending.
func (o *Operation) request(ctx context.Context) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, o.Method, o.URL, bytes.NewReader(o.Body))
	if err != nil {
		return nil, err
	}
	request.Header = o.Header.Clone()
	if host := request.Header.Get(hostHeader); host != "" {
		request.Host = host
		request.Header.Del(hostHeader)
	}
	return request, nil
}
