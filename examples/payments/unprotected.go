package payments

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net/http"
)

// This file is the system without Onceward: the same handlers, each in its own transaction, and
// nothing that remembers a request. The demo runs it to show the difference; it is not to be copied.

var errUndone = errors.New("the handler failed")

// inTransaction runs a handler in a transaction, and sends its answer after the commit.
func (s *System) inTransaction(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var kept heldAnswer
		ctx := context.WithoutCancel(r.Context()) // here too, the work continues without the client
		err := s.db.InTx(ctx, func(ctx context.Context) error {
			kept = heldAnswer{header: make(http.Header)}
			h(&kept, r.WithContext(ctx))
			if kept.status >= http.StatusBadRequest {
				return errUndone
			}
			return nil
		})
		if err != nil && !errors.Is(err, errUndone) {
			s.broken(w, r, "commit", err)
			return
		}
		kept.send(w)
	})
}

// withoutGuard runs a handler directly. If the handler leaves the answer to the guard,
// because the outcome is unknown, the client gets status 500, as from most services.
func withoutGuard(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kept := heldAnswer{header: make(http.Header)}
		h(&kept, r.WithContext(context.WithoutCancel(r.Context())))
		if kept.status == 0 {
			fail(&kept, http.StatusInternalServerError, "something went wrong")
		}
		kept.send(w)
	})
}

// heldAnswer holds an answer until the handler and its transaction have ended.
type heldAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (a *heldAnswer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *heldAnswer) WriteHeader(status int) { a.status = status }

// Write implements [http.ResponseWriter].
func (a *heldAnswer) Write(b []byte) (int, error) { return a.body.Write(b) }

func (a *heldAnswer) send(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // a client that has left retries
}

// bookUnprotected executes the three steps of a booking one after the other.
func (s *System) bookUnprotected(w http.ResponseWriter, r *http.Request) {
	b, err := readBooking(r)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	ctx := context.WithoutCancel(r.Context())
	err = s.db.InTx(ctx, func(ctx context.Context) error { return s.reservePlace(ctx, b) })
	if err == nil {
		err = s.chargeBooking(ctx, "", b)
	}
	if err == nil {
		err = s.db.InTx(ctx, func(ctx context.Context) error { return s.confirmBooking(ctx, b) })
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	done := bookingAnswer(b)
	maps.Copy(w.Header(), done.Header)
	w.WriteHeader(done.Status)
	_, _ = w.Write(done.Body) // a client that has left retries
}
