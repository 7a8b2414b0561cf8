package client

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Operation is a durable operation: a request that is sent until it is answered.
type Operation struct {
	// Key is its name, at the caller and at the server: every attempt is sent under it.
	Key string
	// Method, URL, Header and Body are the request.
	Method string
	URL    string
	Header http.Header
	Body   []byte

	State State
	// Told says that [WorkerConfig].OnSettled has returned without an error, or that there was none to call.
	Told bool
	// Attempts is how often it was begun to send it.
	Attempts int
	// LastError is why the last attempt brought no answer, or why it could not be told.
	LastError string
	// Answer is there if State is StateAnswered.
	Answer Answer

	// CreatedAt is when it was enqueued, FirstSent when it was sent first, and SettledAt when its answer was written
	// down, or that there is none. They are of the journal's clock, and zero for what has not happened.
	CreatedAt, FirstSent, SettledAt time.Time
	// KeptUntil is until when it may be sent, if the service has told that, in an answer that was cut off.
	KeptUntil time.Time
	// Due is when it will be looked after next: sent, told of, or taken from a worker that has died.
	Due time.Time
}

// The most that the journal keeps of an operation.
const (
	// MaxBody is how large the body of a request may be.
	MaxBody = 1 << 20
	// MaxAnswer is how much of the body of an answer is kept.
	MaxAnswer = 1 << 20
)

// ErrSecretHeader is returned for a request that would put a secret into the journal, where it would stay, and be sent
// also when it has long been changed. [WorkerConfig].Prepare adds such headers to each attempt.
var ErrSecretHeader = errors.New("client: a durable operation does not keep credentials: " +
	"let WorkerConfig.Prepare add them to each attempt")

// secretHeaders are those that hold credentials by their definition, or by habit.
var secretHeaders = []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key"}

// Enqueue writes a request into the journal, in a transaction of the application: it will be sent if and only if that
// is committed, and not before. It returns the key, by which [Worker.Wait] and [Journal].Get know the operation. A
// journal with another type of transaction has a function of its own, such as postgres.Enqueue for pgx.
//
// A request that has a key, by [WithKey] or in the header Idempotency-Key, keeps it: one that is made of what the
// operation is about, such as an order's number, makes a second Enqueue of the same an [ErrExists], which changes
// nothing.
func Enqueue(ctx context.Context, journal Journal, tx *sql.Tx, request *http.Request) (key string, err error) {
	if tx == nil {
		return "", errors.New("client: Enqueue needs the transaction that the operation belongs to")
	}
	o, err := NewOperation(request)
	if err != nil {
		return "", err
	}
	return o.Key, journal.Add(ctx, tx, o)
}

// NewOperation makes the operation of a request, and reads its body. It is for those who implement a [Journal]; others
// call [Enqueue]. The request may be used again, as by a transaction that is repeated.
func NewOperation(request *http.Request) (*Operation, error) {
	if err := checkTarget(request.URL); err != nil {
		return nil, err
	}
	for _, name := range secretHeaders {
		if request.Header.Get(name) != "" {
			return nil, fmt.Errorf("%w: %s", ErrSecretHeader, name)
		}
	}
	if err := checkHeader(request.Header); err != nil {
		return nil, err
	}
	body, err := readBody(request)
	if err != nil {
		return nil, err
	}
	o := &Operation{
		Method: request.Method, URL: request.URL.String(), Header: request.Header.Clone(), Body: body,
	}
	if o.Method == "" {
		o.Method = http.MethodGet // as net/http has it
	}
	if o.Header == nil {
		o.Header = make(http.Header)
	}
	if o.Key, err = keyToKeep(request); err != nil {
		return nil, err
	}
	o.Header.Del(keyHeader)
	o.Header.Del(hostHeader) // net/http does not send that
	if request.Host != "" && request.Host != request.URL.Host {
		o.Header.Set(hostHeader, request.Host)
	}
	if _, err := o.request(request.Context()); err != nil {
		return nil, fmt.Errorf("client: the request cannot be sent: %w", err)
	}
	return o, nil
}

// hostHeader is where the journal keeps by which name a server is asked that is reached by another one.
const hostHeader = "Host"

// keyToKeep is the key that the request has, or a new one.
func keyToKeep(request *http.Request) (key string, err error) {
	ietf := ProfileIETF()
	key, given, err := ietf.givenKey(request)
	switch {
	case err != nil:
		return "", err
	case !given:
		return NewKey(), nil
	}
	_, err = ietf.encode(key)
	return key, err
}

// checkTarget refuses what cannot be sent later, and by another process.
func checkTarget(target *url.URL) error {
	switch {
	case target == nil || target.Host == "" || target.Scheme != "https" && target.Scheme != "http":
		return fmt.Errorf("client: %q is not the whole URL of a server", target.Redacted())
	case target.User != nil:
		return fmt.Errorf("%w: the URL has some", ErrSecretHeader)
	}
	return nil
}

// checkHeader refuses fields that net/http would refuse to send, at each attempt. Their values are not shown.
func checkHeader(header http.Header) error {
	for name, values := range header {
		if name == "" || strings.ContainsFunc(name, notInName) {
			return fmt.Errorf("client: %q is not the name of a header field", name)
		}
		for _, value := range values {
			if strings.ContainsFunc(value, isControl) {
				return fmt.Errorf("client: the header field %s has a control character in its value", name)
			}
		}
	}
	return nil
}

// notInName reports whether a character is none of a token (RFC 9110, section 5.6.2).
func notInName(r rune) bool {
	letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// readBody reads the body, and gives the request one that can be read again.
func readBody(request *http.Request) ([]byte, error) {
	if request.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(request.Body, MaxBody+1))
	if err := errors.Join(err, request.Body.Close()); err != nil {
		return nil, fmt.Errorf("client: read the body to enqueue: %w", err)
	}
	switch {
	case len(body) > MaxBody:
		return nil, fmt.Errorf("client: the body of a durable operation has more than %d bytes", MaxBody)
	case request.ContentLength > 0 && request.ContentLength != int64(len(body)):
		return nil, fmt.Errorf("client: the request body has %d bytes, and not %d as announced", len(body),
			request.ContentLength)
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// Host is what operations share their places by: one server that hangs delays its own alone.
func (o *Operation) Host() string {
	target, err := url.Parse(o.URL)
	if err != nil {
		return ""
	}
	return strings.ToLower(target.Host)
}

// request is the next attempt.
func (o *Operation) request(ctx context.Context) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, o.Method, o.URL, bytes.NewReader(o.Body))
	if err != nil {
		return nil, err
	}
	if o.Header != nil {
		request.Header = o.Header.Clone()
	}
	if host := request.Header.Get(hostHeader); host != "" {
		request.Host = host
		request.Header.Del(hostHeader)
	}
	return request, nil
}
