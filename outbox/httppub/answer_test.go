package httppub_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httppub"
)

// publishTo sends an event to a receiver that answers so.
func publishTo(t *testing.T, answer http.HandlerFunc) error {
	t.Helper()
	return newPublisher(t, local(newReceiver(t, answer).URL)).Publish(t.Context(), event())
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	for status, permanent := range map[int]bool{
		301: false, 302: false, 304: false, 307: false, 400: true, 401: false, 403: false, 404: false, 405: false, 408: false,
		409: false, 410: true, 413: true, 415: true, 421: false, 422: true, 425: false, 429: false, 431: true, 500: false,
		501: false, 502: false, 503: false, 504: false,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			err := publishTo(t, answering(status, ""))
			got, ok := errors.AsType[*httppub.StatusError](err)
			if !ok || got.Status != status || errors.Is(err, outbox.ErrPermanent) != permanent {
				t.Errorf("%v, want permanent %v", err, permanent)
			}
		})
	}
	for _, status := range []int{200, 201, 202, 204, 206} {
		if err := publishTo(t, answering(status, "")); err != nil {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// The wait that the receiver asks for goes along with the error, up to the limit.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusConflict, http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		for after, wait := range map[string]time.Duration{"7": 7 * time.Second, "86400": httppub.DefaultMaxRetryAfter} {
			r := newReceiver(t, answering(status, "later", "Retry-After", after))
			err := newPublisher(t, local(r.URL)).Publish(t.Context(), event())
			want := outbox.RetryAfter(&httppub.StatusError{URL: r.URL, Status: status, Body: "later"}, wait)
			if !reflect.DeepEqual(err, want) {
				t.Errorf("%d after %s: %#v, want %#v", status, after, err, want)
			}
		}
	}
	if err := publishTo(t, answering(http.StatusGone, "", "Retry-After", "7")); !errors.Is(err, outbox.ErrPermanent) {
		t.Error(err)
	}
}

func TestPermanentByConfig(t *testing.T) {
	t.Parallel()
	config := local(newReceiver(t, answering(http.StatusNotFound, "")).URL)
	config.Permanent = func(status int) bool { return status == http.StatusNotFound }
	if err := newPublisher(t, config).Publish(t.Context(), event()); !errors.Is(err, outbox.ErrPermanent) {
		t.Error(err)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := newReceiver(t, answering(http.StatusOK, ""))
	err := publishTo(t, answering(http.StatusTemporaryRedirect, "", "Location", elsewhere.URL))
	if err == nil || len(elsewhere.deliveries()) > 0 {
		t.Errorf("%v, and %d requests followed", err, len(elsewhere.deliveries()))
	}
}

// Errors help an operator, and give away nothing: not what is secret in the URL, nor more than a little of the answer.
func TestErrorsAreShortAndSafe(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, answering(http.StatusBadGateway, "upstream\x00 is away "+strings.Repeat("x", 100_000)))
	host := strings.TrimPrefix(r.URL, "http://")
	p := newPublisher(t, local("http://user:hidden@"+host+"/hooks/hidden?key=hidden#hidden"))
	err := p.Publish(t.Context(), event())
	text := fmt.Sprint(err)
	if !strings.Contains(text, r.URL+" answered 502 Bad Gateway") || !strings.Contains(text, "is away") {
		t.Error(text)
	}
	if strings.Contains(text, "hidden") || strings.Contains(text, "\x00") || len(text) > 400 {
		t.Errorf("%d bytes: %s", len(text), text)
	}
	r.Close()
	if text := fmt.Sprint(p.Publish(t.Context(), event())); !strings.Contains(text, "refused") || strings.Contains(text, "hidden") {
		t.Error(text)
	}
}

// A body without an end neither fills the memory nor fails a delivery that was confirmed.
func TestEndlessAnswer(t *testing.T) {
	t.Parallel()
	err := publishTo(t, func(w http.ResponseWriter, r *http.Request) {
		for chunk := []byte(strings.Repeat("x", 4096)); r.Context().Err() == nil; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAnswerThatIsNotHTTP(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	t.Cleanup(func() { _ = ln.Close(); <-served })
	go func() {
		defer close(served)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(strings.Repeat("garbage ", 1000) + "\r\n"))
			_ = conn.Close()
		}
	}()
	got := newPublisher(t, local("http://"+ln.Addr().String())).Publish(t.Context(), event())
	if got == nil || errors.Is(got, outbox.ErrPermanent) || len(got.Error()) > 400 {
		t.Error(got)
	}
}

func TestHugeHeader(t *testing.T) {
	t.Parallel()
	if err := publishTo(t, answering(http.StatusOK, "", "X-Huge", strings.Repeat("x", 1<<20))); err == nil {
		t.Error("the answer was accepted")
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	config := local(r.URL)
	config.Timeout = 50 * time.Millisecond
	err := newPublisher(t, config).Publish(t.Context(), event())
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, outbox.ErrPermanent) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newPublisher(t, local(r.URL)).Publish(ctx, event()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
