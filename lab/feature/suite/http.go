package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
)

// HTTP calls a server that serves payments under /accounts/…/payments and refunds under /accounts/…/refunds, with the
// account in the path.
type HTTP struct {
	// URL is that of the server, without a path.
	URL string
	// Client sends the requests.
	Client *http.Client
	// Handled counts the requests whose handling has ended, answered or not; nil if the server is not one of net/http.
	Handled *atomic.Int64
}

// HTTPFeatures are those of HTTP.
var HTTPFeatures = Features{Headers: true, KeyLines: true, FirstSent: true, Refusals: true, Silence: true}

// ServeHTTP serves HTTP/1 and unencrypted HTTP/2 on loopback until the test ends.
func ServeHTTP(t *testing.T, h http.Handler) HTTP {
	t.Helper()
	handled := new(atomic.Int64)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer handled.Add(1)
		h.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return HTTP{URL: server.URL, Client: server.Client(), Handled: handled}
}

// Call implements [Caller].
func (h HTTP) Call(ctx context.Context, r Request) (Answer, error) {
	body, err := json.Marshal(r.Payment)
	if err != nil {
		return Answer{}, err
	}
	what := "/payments"
	if r.Refund {
		what = "/refunds"
	}
	// A body of this type cannot be sent again: net/http would otherwise repeat what a cut connection answers.
	content := io.NopCloser(bytes.NewReader(body))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL+"/accounts/"+r.Account+what, content)
	if err != nil {
		return Answer{}, err
	}
	request.ContentLength = int64(len(body))
	request.Header.Set("Content-Type", "application/json")
	if r.Tenant != "" {
		request.Header.Set("Authorization", "Bearer "+r.Tenant)
	}
	if r.Key != "" {
		request.Header.Set("Idempotency-Key", r.Key)
	}
	if r.Keys != nil {
		request.Header["Idempotency-Key"] = r.Keys
	}
	if r.FirstSent != "" {
		request.Header.Set(onceward.FirstSentHeader, r.FirstSent)
	}
	response, err := h.Client.Do(request)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	return readAnswer(response)
}

// readAnswer reads what an HTTP response says.
func readAnswer(response *http.Response) (Answer, error) {
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return Answer{}, err
	}
	h := response.Header
	a := Answer{
		Status: response.StatusCode, Body: string(body), Header: h, Replayed: h.Get("Idempotent-Replayed") == "true",
	}
	if h.Get("Content-Type") == "application/problem+json" {
		var problem onceward.Problem
		if err := json.Unmarshal(body, &problem); err != nil {
			return a, err
		}
		a.Code, a.Retryable = problem.Code, problem.Retryable
	}
	if after := h.Get("Retry-After"); after != "" {
		seconds, err := strconv.Atoi(after)
		if err != nil {
			return a, err
		}
		a.RetryAfter = time.Duration(seconds) * time.Second
	}
	if expires := h.Get("Idempotency-Key-Expires"); expires != "" {
		if a.Expires, err = http.ParseTime(expires); err != nil {
			return a, err
		}
	}
	return a, nil
}

// ErrOtherAccount is what a handler over HTTP returns if its path and its body are not of one account.
var ErrOtherAccount = errors.New("the path names another account than the body")
