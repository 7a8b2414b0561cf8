package client

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"
)

// status is the part of an answer of Onceward's status handler that the client needs.
type status struct {
	Key   string `json:"key"`
	State string `json:"state"`
}

const stateInProgress = "in_progress"

// follow requests the status of an operation in progress until the operation is settled, so that the request
// with its body is not sent repeatedly. Afterwards the caller sends the operation again to get its result.
// follow returns an error if there is no time left. resp is the answer that contained the URL of the status.
func (op *operation) follow(v verdict, resp *http.Response) error {
	for {
		next, again := op.poll(v)
		if !again {
			return nil
		}
		if why := op.pause(next, resp); why != nil {
			return why
		}
	}
}

// poll requests the status once. It reports true, to poll again, if the operation is in
// progress or the service failed to return the status. Any other answer ends the polling.
func (op *operation) poll(v verdict) (next verdict, again bool) {
	begun := time.Now()
	req, cancel := op.bounded(op.statusRequest(v).WithContext(op))
	if cancel != nil {
		defer cancel()
	}
	resp, err := op.transport.config.Base.RoundTrip(req)
	next = verdict{status: v.status}
	code := 0
	if err == nil {
		defer func() {
			_, _ = io.CopyN(io.Discard, resp.Body, peekLimit) // so that the connection can be reused
			discard(resp)
		}()
		code = resp.StatusCode
		next.after, next.hasAfter = retryAfter(resp)
	}
	if op.transport.config.Observer != nil {
		op.observe(AttemptEvent{
			Request: op.original, Key: op.key, Attempt: op.attempts, Polled: true, Status: code, Err: err,
			Elapsed: time.Since(begun),
		})
	}
	switch {
	case err != nil, code == http.StatusTooManyRequests, code >= http.StatusInternalServerError:
		return next, true
	case code != http.StatusOK:
		return next, false
	}
	var s status
	err = json.NewDecoder(http.MaxBytesReader(nil, resp.Body, peekLimit)).Decode(&s)
	return next, err != nil || s.State == stateInProgress
}

// statusRequest returns a request for the status, with the credentials of the operation: the origin is the same.
func (op *operation) statusRequest(v verdict) *http.Request {
	p := op.transport.profile
	h := make(http.Header, len(op.request.Header))
	for name, values := range op.request.Header {
		switch {
		case name == p.Header, name == p.FirstSentHeader, strings.HasPrefix(name, "Content-"):
		case name == "Expect", name == "Trailer", name == "Transfer-Encoding":
		default:
			h[name] = values
		}
	}
	h["Accept"] = []string{"application/json"}
	return &http.Request{
		Method: http.MethodGet, URL: v.status, Host: op.request.Host, Header: h,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
}
