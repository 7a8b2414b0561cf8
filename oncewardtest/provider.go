package oncewardtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
)

// ProviderConfig is what a [Provider] does.
type ProviderConfig struct {
	// Dedups makes it recognise a key: a call under one that it has seen gets the first answer, and has no effect.
	// Default: each POST or PATCH has its effect. A PUT or DELETE of the same path has one effect in any case, because
	// that is what its method says, and a GET has none.
	Dedups bool
	// KeyHeader is the header that keys come in. Default: Idempotency-Key.
	KeyHeader string
	// Answer makes the answer to a call, which is the n-th effect. Default: 201 with {"id":"effect-n"}.
	Answer func(call ProviderCall, n int) (status int, body string)
}

// ProviderCall is a call that a provider has got.
type ProviderCall struct {
	Method, Path, Key, Body string
}

// reads reports whether the call changes nothing, by its method.
func (c ProviderCall) reads() bool {
	return c.Method == http.MethodGet || c.Method == http.MethodHead || c.Method == http.MethodOptions
}

// repeatable reports whether the call does the same if it is made again, by its method, and needs no key.
func (c ProviderCall) repeatable() bool {
	return c.reads() || c.Method == http.MethodPut || c.Method == http.MethodDelete
}

// ErrProviderLost is returned by [Provider.Call] where over HTTP the connection is cut.
var ErrProviderLost = errors.New("oncewardtest: the connection to the provider was lost")

// Provider is a double of another system that handlers call, such as one for payments: it counts its effects, records
// its calls with their keys, and loses them or their answers where a test says so.
type Provider struct {
	// URL is where it listens, without a slash at its end.
	URL string

	config ProviderConfig
	making sync.Mutex // one effect after the other

	mu sync.Mutex
	// arrived and checked are told of each call, with its number from 1, before it has its effect; they may be nil.
	arrived func(n int, call ProviderCall) // the test's own
	checked func(n int, call ProviderCall) // that of a check
	calls   []ProviderCall
	effects int
	answers map[string]providerAnswer // by what calls are recognised by
	faults  map[int]providerFault     // by the number of the call
}

type providerAnswer struct {
	status int
	body   string
}

type providerFault uint8

const (
	providerRefuses providerFault = iota + 1
	providerLosesReply
)

// NewProvider starts a provider on a port of this machine. It is closed at the end of the test.
func NewProvider(t TestingT, config ProviderConfig) *Provider {
	t.Helper()
	config.KeyHeader = cmp.Or(config.KeyHeader, "Idempotency-Key")
	if config.Answer == nil {
		config.Answer = func(_ ProviderCall, n int) (int, string) {
			return http.StatusCreated, fmt.Sprintf(`{"id":"effect-%d"}`, n)
		}
	}
	p := &Provider{config: config, answers: make(map[string]providerAnswer), faults: make(map[int]providerFault)}
	server := httptest.NewUnstartedServer(p)
	// On a connection that was used before, Go's client repeats a request with a key by itself when it is cut.
	server.Config.SetKeepAlivesEnabled(false)
	server.Start()
	t.Cleanup(server.Close)
	p.URL = server.URL
	return p
}

// Effects returns how many effects it has made.
func (p *Provider) Effects() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.effects
}

// Calls returns the calls that it has got, in their order.
func (p *Provider) Calls() []ProviderCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// RefuseCall cuts the n-th call, counted from 1, before it has its effect.
func (p *Provider) RefuseCall(n int) { p.plan(n, providerRefuses) }

// LoseReply lets the n-th call, counted from 1, have its effect, and loses its answer.
func (p *Provider) LoseReply(n int) { p.plan(n, providerLosesReply) }

func (p *Provider) plan(n int, fault providerFault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[n] = fault
}

// ServeHTTP implements [http.Handler].
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	call := ProviderCall{r.Method, r.URL.Path, r.Header.Get(p.config.KeyHeader), string(body)}
	answer, err := p.take(call)
	if err != nil {
		panic(http.ErrAbortHandler) // it cuts the connection
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(answer.status)
	_, _ = io.WriteString(w, answer.body) // a caller that has left is none of its business
}

// Call is a POST without HTTP, for handlers that are built with a function in the place of a client. It returns the
// body of the answer, or an error for an answer of 400 or more.
func (p *Provider) Call(_ context.Context, path, key, body string) (string, error) {
	answer, err := p.take(ProviderCall{http.MethodPost, path, key, body})
	if err == nil && answer.status >= http.StatusBadRequest {
		err = fmt.Errorf("oncewardtest: the provider answered %d: %s", answer.status, strings.TrimSpace(answer.body))
	}
	return answer.body, err
}

// take takes a call, and returns its answer, or an error where that is lost.
func (p *Provider) take(call ProviderCall) (providerAnswer, error) {
	p.mu.Lock()
	p.calls = append(p.calls, call)
	n := len(p.calls)
	fault := p.faults[n]
	told := []func(int, ProviderCall){p.arrived, p.checked}
	p.mu.Unlock()
	for _, tell := range told {
		if tell != nil {
			tell(n, call)
		}
	}
	if fault == providerRefuses {
		return providerAnswer{}, ErrProviderLost
	}
	answer := p.make(call)
	if fault == providerLosesReply {
		return providerAnswer{}, ErrProviderLost
	}
	return answer, nil
}

// make makes the effect of a call, unless it has been made.
func (p *Provider) make(call ProviderCall) providerAnswer {
	p.making.Lock()
	defer p.making.Unlock()
	identity := p.identity(call)
	p.mu.Lock()
	answer, known := p.answers[identity]
	n := p.effects + 1
	p.mu.Unlock()
	if known {
		return answer
	}
	answer.status, answer.body = p.config.Answer(call, n) // which may ask the provider what it has got
	p.mu.Lock()
	defer p.mu.Unlock()
	if answer.status < http.StatusBadRequest && !call.reads() {
		p.effects++
	}
	if identity != "" {
		p.answers[identity] = answer
	}
	return answer
}

// identity is what a call is recognised by; empty if each has an effect of its own.
func (p *Provider) identity(call ProviderCall) string {
	switch {
	case call.reads():
		return ""
	case p.config.Dedups && call.Key != "":
		return "key " + call.Key
	case call.repeatable():
		return call.Method + " " + call.Path
	default:
		return ""
	}
}

// AtCall calls a function whenever a call has arrived, with its number from 1, before it has its effect: to hold it, to
// move the clock, or to end the process meanwhile.
func (p *Provider) AtCall(arrived func(n int, call ProviderCall)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrived = arrived
}

// watch has a run of a check told of each call, and begins with a provider that knows none: runs may share it.
func (p *Provider) watch(checked func(n int, call ProviderCall)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checked = checked
	clear(p.answers)
}
