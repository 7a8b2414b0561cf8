package client

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"
)

// status is what counts of a status as Onceward's handler for it answers.
type status struct {
	Key   string `json:"key"`
	State string `json:"state"`
}

const stateInProgress = "in_progress"

// follow asks for the status of an operation under way until that is settled, so that the request with its body is not
// sent again and again. What came of it the operation itself is asked for then. It returns why there is no time for
// that. The response is the one that led here.
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

// poll asks once. Whatever is not the status of an operation under way, or a failure to tell it, ends the asking.
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
			_, _ = io.CopyN(io.Discard, resp.Body, peekLimit) // so that its connection can be kept
			discard(resp)
		}()
		code = resp.StatusCode
		next.after, next.told = retryAfter(resp)
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

// statusRequest is a question for the status, with the credentials of the operation: it goes to the same origin.
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
