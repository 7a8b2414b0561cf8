package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/client"
)

// script is a service that answers each attempt with the next of its lines, and the last one again and again.
type script struct {
	mu    sync.Mutex
	lines []line
	sent  []*http.Request
	times []time.Time
	body  []string
}

// line is one answer: an error if it has no status.
type line struct {
	status int
	header map[string]string
	body   string
	err    error
}

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	var content []byte
	if req.Body != nil {
		content, _ = io.ReadAll(req.Body)
		req.Body.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.lines[min(len(s.sent), len(s.lines)-1)]
	s.sent, s.times, s.body = append(s.sent, req), append(s.times, time.Now()), append(s.body, string(content))
	if next.status == 0 {
		return nil, next.err
	}
	resp := &http.Response{
		StatusCode: next.status, ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header), Request: req,
		ContentLength: int64(len(next.body)), Body: io.NopCloser(strings.NewReader(next.body)),
	}
	for name, value := range next.header {
		resp.Header.Set(name, value)
	}
	return resp, nil
}

// says is a problem of Onceward.
func says(status int, code string, retryable bool) line {
	return line{
		status: status, header: map[string]string{"Content-Type": "application/problem+json; charset=utf-8"},
		body: `{"code":"` + code + `","retryable":` + strconv.FormatBool(retryable) + `}`,
	}
}

func answers(status int) line { return line{status: status, body: "what it says"} }

func (l line) with(name, value string) line {
	header := map[string]string{name: value}
	for name, value := range l.header {
		header[name] = value
	}
	l.header = header
	return l
}

var (
	errReset = errors.New("connection reset")
	errDial  = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	created  = answers(http.StatusCreated)
	expires  = "Sun, 02 Jan 2000 00:00:00 GMT" // a day after the time at which synctest begins
)

// TestRules goes through the table of docs/client.md: what each answer leads to, and what it says of the operation.
// A status of 0 is an error.
func TestRules(t *testing.T) {
	t.Parallel()
	reset, dial := line{err: errReset}, line{err: errDial}
	for name, each := range map[string]struct {
		profile  *client.Profile
		lines    []line
		attempts int
		status   int
		outcome  client.Outcome
	}{
		"success":                  {nil, []line{created}, 1, 201, client.OutcomeAnswered},
		"refused":                  {nil, []line{answers(404)}, 1, 404, client.OutcomeAnswered},
		"redirect without address": {nil, []line{answers(304)}, 1, 304, client.OutcomeUnknown},
		"reset once":               {nil, []line{reset, created}, 2, 201, client.OutcomeAnswered},
		"reset always":             {nil, []line{reset}, 5, 0, client.OutcomeUnknown},
		"dial always":              {nil, []line{dial}, 5, 0, client.OutcomeNotExecuted},
		"dial after reset":         {nil, []line{reset, dial}, 5, 0, client.OutcomeUnknown},
		"503 once":                 {nil, []line{answers(503), created}, 2, 201, client.OutcomeAnswered},
		"503 always":               {nil, []line{answers(503)}, 5, 503, client.OutcomeUnknown},
		"408":                      {nil, []line{answers(408), created}, 2, 201, client.OutcomeAnswered},
		"425":                      {nil, []line{answers(425), created}, 2, 201, client.OutcomeAnswered},
		"429":                      {nil, []line{answers(429), created}, 2, 201, client.OutcomeAnswered},
		"502":                      {nil, []line{answers(502), created}, 2, 201, client.OutcomeAnswered},
		"504":                      {nil, []line{answers(504), created}, 2, 201, client.OutcomeAnswered},
		"500":                      {nil, []line{answers(500), created}, 2, 201, client.OutcomeAnswered},
		"501":                      {nil, []line{answers(501)}, 1, 501, client.OutcomeUnknown},
		"500 that is stored": {
			nil, []line{answers(500).with("Idempotency-Key-Expires", expires)}, 1, 500, client.OutcomeAnswered,
		},
		"500 that is replayed": {
			nil, []line{answers(500).with("Idempotent-Replayed", "true")}, 1, 500, client.OutcomeAnswered,
		},
		"conflict of its own":  {nil, []line{answers(409)}, 1, 409, client.OutcomeAnswered},
		"in progress":          {nil, []line{says(409, "in-progress", true), created}, 2, 201, client.OutcomeAnswered},
		"unknown here":         {nil, []line{says(500, "outcome-unknown", true)}, 5, 500, client.OutcomeUnknown},
		"not executed":         {nil, []line{says(503, "not-executed", true)}, 5, 503, client.OutcomeNotExecuted},
		"lost, then not":       {nil, []line{reset, says(503, "not-executed", true)}, 5, 503, client.OutcomeUnknown},
		"work refused":         {nil, []line{says(500, "work-refused", true)}, 5, 500, client.OutcomeNotExecuted},
		"a problem of another": {nil, []line{says(503, "tired", true)}, 5, 503, client.OutcomeUnknown},
		"mismatch":             {nil, []line{says(422, "mismatch", false)}, 1, 422, client.OutcomeAnswered},
		"missing key":          {nil, []line{says(400, "missing-key", false)}, 1, 400, client.OutcomeAnswered},
		"unauthenticated":      {nil, []line{says(401, "unauthenticated", false)}, 1, 401, client.OutcomeNotExecuted},
		"handler failed":       {nil, []line{says(500, "handler-failed", false)}, 1, 500, client.OutcomeAnswered},
		"unreadable":           {nil, []line{says(500, "record-unreadable", false)}, 1, 500, client.OutcomeUnknown},
		"lost, then too old": {
			nil, []line{reset, says(412, "first-sent-too-old", false)}, 2, 412, client.OutcomeUnknown,
		},
		"lost, then 401": {nil, []line{reset, answers(401)}, 2, 401, client.OutcomeUnknown},
		"lost, then a stored refusal": {
			nil, []line{reset, answers(402).with("Idempotency-Key-Expires", expires)}, 2, 402, client.OutcomeAnswered,
		},
		"a problem that is no JSON": {
			nil,
			[]line{{status: 503, header: map[string]string{"Content-Type": "application/problem+json"}, body: "{"}, created},
			2, 201, client.OutcomeAnswered,
		},
		"accepted by a handler": {
			nil, []line{{
				status: 202, header: map[string]string{"Content-Type": "application/json", "Location": "/jobs/1"},
				body: `{"key":"another","state":"in_progress"}`,
			}}, 1, 202, client.OutcomeAnswered,
		},

		"Stripe: 409": {client.ProfileStripe(), []line{answers(409), created}, 2, 201, client.OutcomeAnswered},
		"Stripe: do not retry": {
			client.ProfileStripe(), []line{answers(500).with("Stripe-Should-Retry", "false")}, 1, 500, client.OutcomeUnknown,
		},
		"Stripe: retry": {
			client.ProfileStripe(),
			[]line{answers(400).with("Stripe-Should-Retry", "true"), created},
			2, 201,
			client.OutcomeAnswered,
		},
		"Stripe: lost, then declined": {
			client.ProfileStripe(), []line{reset, answers(402)}, 2, 402, client.OutcomeAnswered,
		},
		"Stripe: lost, then 401": {client.ProfileStripe(), []line{reset, answers(401)}, 2, 401, client.OutcomeUnknown},
		"PayPal: 500":            {client.ProfilePayPal(), []line{answers(500), created}, 2, 201, client.OutcomeAnswered},
		"Checkout.com: 500":      {client.ProfileCheckout(), []line{answers(500), created}, 1, 500, client.OutcomeUnknown},
		"Checkout.com: 429":      {client.ProfileCheckout(), []line{answers(429), created}, 2, 201, client.OutcomeAnswered},
		"PPRO: 409":              {client.ProfilePPRO(), []line{answers(409), created}, 2, 201, client.OutcomeAnswered},
		"PPRO: 500 replayed": {
			client.ProfilePPRO(), []line{answers(500).with("Request-Idempotency", "true")}, 1, 500, client.OutcomeAnswered,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				service := &script{lines: each.lines}
				got := post(t.Context(), newClient(t, client.Config{Base: service, Profile: each.profile}))
				if got.status != each.status || got.outcome != each.outcome || len(service.sent) != each.attempts {
					t.Errorf("after %d attempts %+v", len(service.sent), got)
				}
				service.sameEachTime(t, each.profile)
				if each.status != 0 && got.body != each.lines[min(each.attempts, len(each.lines))-1].body {
					t.Errorf("the body is %q", got.body)
				}
				unfinished := (*client.UnfinishedError)(nil)
				if each.status == 0 && (!errors.As(got.err, &unfinished) || unfinished.Attempts != each.attempts ||
					unfinished.Key == "" || !errors.Is(got.err, client.ErrTooManyAttempts)) {
					t.Errorf("the error is %v", got.err)
				}
			})
		})
	}
}

// sameEachTime checks that all attempts carried one key, one time of first sending, and the whole body.
func (s *script) sameEachTime(t *testing.T, p *client.Profile) {
	t.Helper()
	if p == nil {
		p = client.ProfileIETF()
	}
	key := s.sent[0].Header.Get(p.Header)
	sent := s.times[0].UTC().Format(http.TimeFormat)
	if p.FirstSentHeader == "" {
		sent = ""
	}
	for i, req := range s.sent {
		if key == "" || req.Header.Get(p.Header) != key || req.Header.Get("Idempotency-First-Sent") != sent ||
			s.body[i] != `{"amount":1}` {
			t.Errorf("attempt %d: %v with the body %q", i+1, req.Header, s.body[i])
		}
	}
}

// TestWaits holds how long is waited: as the service says, else a random time that grows; and never past the end.
func TestWaits(t *testing.T) {
	t.Parallel()
	busy := says(409, "in-progress", true)
	for name, each := range map[string]struct {
		config      client.Config
		within      time.Duration // the deadline of the caller
		lines       []line
		least, most time.Duration
		status      int
		outcome     client.Outcome
	}{
		"seconds": {
			client.Config{},
			0,
			[]line{answers(503).with("Retry-After", "7"), created},
			7 * time.Second, 7200 * time.Millisecond,
			201, client.OutcomeAnswered,
		},
		"date": {
			client.Config{},
			0,
			[]line{answers(503).with("Retry-After", "Sat, 01 Jan 2000 00:00:09 GMT"), created},
			9 * time.Second, 9200 * time.Millisecond, 201, client.OutcomeAnswered,
		},
		"date in the past": {
			client.Config{},
			0,
			[]line{answers(503).with("Retry-After", "Sat, 01 Jan 1999 00:00:09 GMT"), created},
			0, 200 * time.Millisecond, 201, client.OutcomeAnswered,
		},
		"longer than there is time": {
			client.Config{}, 0, []line{answers(503).with("Retry-After", "70"), created}, 0, 0, 503, client.OutcomeUnknown,
		},
		"longer than any time": {
			client.Config{},
			0,
			[]line{answers(503).with("Retry-After", "99999999999999999999"), created},
			0, 0,
			503, client.OutcomeUnknown,
		},
		"nonsense": {
			client.Config{},
			0,
			[]line{answers(503).with("Retry-After", "soon"), created},
			0, 200 * time.Millisecond,
			201, client.OutcomeAnswered,
		},
		"longer than the caller has": {
			client.Config{},
			5 * time.Second,
			[]line{answers(503).with("Retry-After", "5"), created},
			0, 0,
			503, client.OutcomeUnknown,
		},
		"backoff": {
			client.Config{MaxAttempts: 9, MinBackoff: time.Second, MaxBackoff: 4 * time.Second},
			0,
			[]line{answers(503)},
			time.Second, 31 * time.Second, 503, client.OutcomeUnknown,
		},
		"in progress for longer than the timeout": {
			client.Config{Timeout: 10 * time.Second, MaxAttempts: 1},
			0,
			[]line{busy.with("Retry-After", "1")},
			8 * time.Second, 10 * time.Second, 409, client.OutcomeUnknown,
		},
		"in progress for longer than the caller has": {
			client.Config{MaxAttempts: 1},
			10 * time.Second,
			[]line{busy.with("Retry-After", "1")},
			8 * time.Second, 10 * time.Second, 409, client.OutcomeUnknown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if each.within > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, each.within)
					defer cancel()
				}
				each.config.Base = &script{lines: each.lines}
				got := post(ctx, newClient(t, each.config))
				if got.err != nil || got.status != each.status || got.outcome != each.outcome {
					t.Errorf("got %+v", got)
				}
				if got.took < each.least || got.took > each.most {
					t.Errorf("it took %v", got.took)
				}
			})
		})
	}
}

// TestWindow sends nothing once the service may have forgotten the key: counted from the first sending, or by what
// the service said.
func TestWindow(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	patient := func(service *script) client.Config {
		return client.Config{Base: service, Timeout: 3 * day, MaxAttempts: 1000, MinBackoff: time.Hour, MaxBackoff: time.Hour}
	}
	check := func(t *testing.T, got reply, last time.Time, mayHaveExecuted bool, service *script) {
		t.Helper()
		unfinished := (*client.UnfinishedError)(nil)
		if !errors.Is(got.err, client.ErrWindowClosed) || !errors.As(got.err, &unfinished) ||
			unfinished.MayHaveExecuted != mayHaveExecuted {
			t.Errorf("got %+v", got)
		}
		for i, at := range service.times {
			if at.After(last) {
				t.Errorf("attempt %d was sent at %v, after %v", i+1, at, last)
			}
		}
	}
	run := func(name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) { t.Parallel(); synctest.Test(t, f) })
	}
	run("of the profile", func(t *testing.T) {
		service := &script{lines: []line{{err: errReset}}}
		begun := time.Now()
		check(t, post(t.Context(), newClient(t, patient(service))), begun.Add(day), true, service)
		if n := len(service.sent); n < 23 {
			t.Errorf("it was sent %d times in the window", n)
		}
	})
	run("with an answer", func(t *testing.T) {
		service := &script{lines: []line{says(409, "in-progress", true)}}
		begun := time.Now()
		check(t, post(t.Context(), newClient(t, patient(service))), begun.Add(day), true, service)
	})
	run("of the service, by its own clock", func(t *testing.T) {
		cutOff := line{status: 201, header: map[string]string{
			"Idempotency-Key-Expires": "Tue, 01 Feb 2000 02:00:00 GMT", "Date": "Tue, 01 Feb 2000 00:00:00 GMT",
		}}
		service := &script{lines: []line{cutOff}}
		c := patient(service)
		c.Base = roundTrip(func(req *http.Request) (*http.Response, error) {
			resp, err := service.RoundTrip(req)
			if err == nil && len(service.sent) == 1 {
				resp.ContentLength = 10
			} else {
				return nil, errReset
			}
			return resp, err
		})
		begun := time.Now()
		check(t, post(t.Context(), newClient(t, c)), begun.Add(2*time.Hour), true, service)
	})
	run("resumed", func(t *testing.T) {
		service := &script{lines: []line{created}}
		c := newClient(t, client.Config{Base: service})
		ctx := client.WithKey(t.Context(), "order-1")
		late := post(client.Resumed(ctx, time.Now().Add(-day)), c)
		check(t, late, time.Now(), true, service)
		if len(service.sent) > 0 {
			t.Error("it was sent")
		}
		early := post(client.Resumed(ctx, time.Now().Add(-time.Hour)), c)
		early.want(t, http.StatusCreated, client.OutcomeAnswered, false)
		if sent := service.sent[0].Header.Get("Idempotency-First-Sent"); sent != "Fri, 31 Dec 1999 23:00:00 GMT" {
			t.Errorf("it was first sent at %s", sent)
		}
		service.lines = []line{answers(403)}
		refused := post(client.Resumed(ctx, time.Now()), c)
		refused.want(t, http.StatusForbidden, client.OutcomeUnknown, false)
	})
	run("by the header", func(t *testing.T) {
		service := &script{lines: []line{created}}
		c := newClient(t, client.Config{Base: service})
		sentAt := func(value string) func(*http.Request) {
			return func(r *http.Request) { r.Header.Set("Idempotency-First-Sent", value) }
		}
		check(t, post(t.Context(), c, sentAt("Fri, 31 Dec 1999 00:00:00 GMT")), time.Now(), true, service)
		if got := post(t.Context(), c, sentAt("yesterday")); got.outcome != client.OutcomeNotExecuted {
			t.Errorf("got %+v", got)
		}
		if len(service.sent) > 0 {
			t.Error("it was sent")
		}
		kept := "Fri, 31 Dec 1999 23:59:00 GMT"
		if got := post(t.Context(), c, sentAt(kept)); service.sent[0].Header.Get("Idempotency-First-Sent") != kept {
			t.Errorf("got %+v, sent %v", got, service.sent[0].Header)
		}
	})
	run("in the future", func(t *testing.T) {
		service := &script{lines: []line{{err: errReset}}}
		begun := time.Now()
		got := post(client.Resumed(t.Context(), begun.Add(10*day)), newClient(t, patient(service)))
		check(t, got, begun.Add(day), true, service)
	})
}
