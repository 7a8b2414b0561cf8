package httpcall

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/outbox"
)

// Operation is a durable operation: a request that is sent until it is answered.
type Operation struct {
	// ID is the ID of the message, and Key is the idempotency key of every sending.
	ID, Key string
	// Method, URL, Header and Body are the request.
	Method string
	URL    string
	Header http.Header
	Body   []byte

	// Outcome is [client.OutcomeAnswered] if there is an Answer, or else [client.OutcomeUnknown].
	Outcome client.Outcome
	Answer  Answer
	// FirstSent is the earliest time at which the operation was sent, by the store's
	// clock, or zero if it was never sent. KeptUntil is the time until which it may
	// be sent, if the service sent that time in an answer that was cut off.
	FirstSent, KeptUntil time.Time
	// Attempts is how often a sending was started.
	Attempts int
	// LastError is the reason why the last sending got no answer.
	LastError string
}

// Answer is the answer to an operation.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	// Truncated means that the answer was longer than [outbox.MaxAnswer]: Body is its beginning.
	Truncated bool
}

// OperationOf returns the operation in a message, for programs that list messages.
func OperationOf(e *outbox.Entry) (Operation, error) {
	o, _, err := open(e)
	return o, err
}

// record is the state that is stored with the message between deliveries, in the place of its answer.
type record struct {
	firstSent, keptUntil time.Time
	answer               *Answer
}

// recordHead is the first line of a record, as JSON. The header and the body of the answer follow.
type recordHead struct {
	Version   int       `json:"version"`
	FirstSent time.Time `json:"first_sent,omitzero"`
	KeptUntil time.Time `json:"kept_until,omitzero"`
	Status    int       `json:"status,omitempty"`
	Truncated bool      `json:"truncated,omitempty"`
}

// recordVersion is the version of the records that this program writes, and the newest version that it can read.
const recordVersion = 1

// errNewer is returned for a record of a newer version of the program, which must finish the operation.
var errNewer = errors.New("httpcall: a newer version of the program keeps the state of this operation")

// maxAnswerHeader is the size above which the header of an answer
// is left out, if the answer does not fit into its record.
const maxAnswerHeader = 64 << 10

// encode returns the stored form of a record, at most
// [outbox.MaxAnswer] bytes. An answer that does not fit is truncated.
func (r *record) encode() ([]byte, error) {
	head := recordHead{Version: recordVersion, FirstSent: r.firstSent, KeptUntil: r.keptUntil}
	var answer Answer
	if r.answer != nil {
		answer = *r.answer
		head.Status, head.Truncated = answer.Status, answer.Truncated
	}
	for {
		first, err := json.Marshal(head)
		if err != nil {
			return nil, err
		}
		content, err := wire(string(first), answer.Header, answer.Body)
		switch over := len(content) - outbox.MaxAnswer; {
		case err != nil:
			return nil, err
		case over <= 0:
			return content, nil
		case len(content)-len(answer.Body) > maxAnswerHeader:
			head.Truncated, answer.Header = true, nil
		case !head.Truncated:
			head.Truncated = true // the field takes up space too
		default:
			answer.Body = answer.Body[:len(answer.Body)-over]
		}
	}
}

// open returns the operation in a message, and its record.
func open(e *outbox.Entry) (o Operation, r record, err error) {
	o = Operation{ID: e.ID, Key: e.DownstreamKey, Attempts: e.Attempts, LastError: e.LastError}
	if e.Unreadable != nil {
		return o, r, e.Unreadable
	}
	first, header, body, err := unwire(e.Payload)
	method, target, ok := strings.Cut(first, " ")
	if err != nil || !ok {
		return o, r, errors.Join(fmt.Errorf("httpcall: message %s is no request", e.ID), err)
	}
	o.Method, o.URL, o.Header, o.Body = method, target, header, body
	if len(e.Answer) == 0 {
		return o, r, nil
	}
	first, header, body, err = unwire(e.Answer)
	var head recordHead
	err = errors.Join(err, json.Unmarshal([]byte(first), &head))
	switch {
	case head.Version > recordVersion: // even if the rest cannot be read
		return o, r, fmt.Errorf("%w: version %d of the record of message %s", errNewer, head.Version, e.ID)
	case err != nil:
		return o, r, fmt.Errorf("httpcall: the answer that is kept of message %s: %w", e.ID, err)
	}
	r = record{firstSent: head.FirstSent, keptUntil: head.KeptUntil}
	o.FirstSent, o.KeptUntil = r.firstSent, r.keptUntil
	if head.Status != 0 {
		o.Outcome = client.OutcomeAnswered
		o.Answer = Answer{Status: head.Status, Header: header, Body: body, Truncated: head.Truncated}
		r.answer = &o.Answer
	}
	return o, r, nil
}

// wire writes a first line, a header and a body in the form of HTTP/1.1.
func wire(first string, header http.Header, body []byte) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(first + "\r\n")
	if err := header.Write(&b); err != nil {
		return nil, err
	}
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes(), nil
}

// unwire is the inverse of wire.
func unwire(content []byte) (first string, header http.Header, body []byte, err error) {
	buffered := bufio.NewReader(bytes.NewReader(content))
	lines := textproto.NewReader(buffered)
	if first, err = lines.ReadLine(); err != nil {
		return "", nil, nil, err
	}
	fields, err := lines.ReadMIMEHeader()
	if err != nil {
		return "", nil, nil, err
	}
	body, err = io.ReadAll(buffered)
	return first, http.Header(fields), body, err
}
