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

// ProviderConfig configures a [Provider].
type ProviderConfig struct {
	// Dedups means that the provider recognises keys: a call with a known key gets the first answer, and has no effect.
	// Default: each POST or PATCH has its effect. In any case several PUTs or DELETEs of the same path have one effect,
	// because their method defines that, and a GET has none.
	Dedups bool
	// KeyHeader is the header of the keys. Default: Idempotency-Key.
	KeyHeader string
	// Answer returns the answer to a call, which is the n-th effect. Default: 201 with {"id":"effect-n"}.
	Answer func(call ProviderCall, n int) (status int, body string)
}

// ProviderCall is a call that a provider has received.
type ProviderCall struct {
	Method, Path, Key, Body string
}

// reads reports whether the method of the call changes nothing.
func (c ProviderCall) reads() bool {
	return c.Method == http.MethodGet || c.Method == http.MethodHead || c.Method == http.MethodOptions
}

// repeatable reports whether the call may be repeated without a key, because of its method.
func (c ProviderCall) repeatable() bool {
	return c.reads() || c.Method == http.MethodPut || c.Method == http.MethodDelete
}

// ErrProviderLost is returned by [Provider.Call] where the connection would be cut over HTTP.
var ErrProviderLost = errors.New("oncewardtest: the connection to the provider was lost")

// Provider is a test double of another system that handlers call, such as a payment provider. It counts its effects,
// records its calls with their keys, and loses calls or their answers when a test asks for it.
type Provider struct {
	// URL is the address of the provider, without a slash at its end.
	URL string

	config ProviderConfig
	making sync.Mutex // held to make one effect after the other

	mu sync.Mutex
	// arrived and checked are called for each call, with its number from 1, before it has its effect; they may be nil.
	arrived func(n int, call ProviderCall) // set by the test
	checked func(n int, call ProviderCall) // set by a check
	calls   []ProviderCall
	effects int
	answers map[string]providerAnswer // by the identity of the call
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
	// Go's client retries a request with a key automatically if a reused connection is cut.
	server.Config.SetKeepAlivesEnabled(false)
	server.Start()
	t.Cleanup(server.Close)
	p.URL = server.URL
	return p
}

// Effects returns the number of effects.
func (p *Provider) Effects() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.effects
}

// Calls returns the calls that the provider has received, in order.
func (p *Provider) Calls() []ProviderCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// RefuseCall cuts the connection of the n-th call, counted from 1, before the call has its effect.
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
	_, _ = io.WriteString(w, answer.body) // an error means that the caller has left
}

// Call makes a POST without HTTP, for handlers that use a function instead of a client. It returns the body of the
// answer, or an error for an answer of 400 or more.
func (p *Provider) Call(_ context.Context, path, key, body string) (string, error) {
	answer, err := p.take(ProviderCall{http.MethodPost, path, key, body})
	if err == nil && answer.status >= http.StatusBadRequest {
		err = fmt.Errorf("oncewardtest: the provider answered %d: %s", answer.status, strings.TrimSpace(answer.body))
	}
	return answer.body, err
}

// take records a call, and returns its answer, or an error if the answer is lost.
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

// make makes the effect of a call, unless it has already been made.
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
	answer.status, answer.body = p.config.Answer(call, n) // Answer may use the provider, so the lock is not held
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

// identity returns the text that a call is recognised by; empty if each call has its own effect.
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

// AtCall sets a function that is called when a call has arrived, with its number from 1, before the call has its
// effect. The function may delay the call, move the clock, or end the process.
func (p *Provider) AtCall(arrived func(n int, call ProviderCall)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrived = arrived
}

// watch sets the function of a check that is called for each call, and forgets all answers, because runs may share a
// provider.
func (p *Provider) watch(checked func(n int, call ProviderCall)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checked = checked
	clear(p.answers)
}
