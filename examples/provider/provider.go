package provider

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	defaultWebhookAttempts = 5
	defaultWebhookBackoff  = 50 * time.Millisecond
)

// Config configures a provider. The zero value is a provider without a file, without idempotency
// and without webhooks. All fields except Logger and Now can be sent to a child process as JSON.
type Config struct {
	// LedgerPath is the file of the ledger. It is created if it is missing, and
	// otherwise read. Default: none, and all data are lost when the provider ends.
	LedgerPath string
	// Dedup means that the provider supports the Idempotency-Key header: the same
	// key makes one charge. Default: false, like a provider without idempotency.
	Dedup bool
	// DeclinedAmounts are the amounts whose charges are declined. An
	// empty slice that is not nil means none. Default: DeclinedAmount.
	DeclinedAmounts []int64
	// Webhook is the destination of events. Default: no events are sent.
	Webhook Webhook
	// WebhookAttempts is the largest number of attempts to send an event until it is answered with 2xx. Default: 5.
	WebhookAttempts int
	// WebhookBackoff is the time between two attempts. Default: 50 ms.
	WebhookBackoff time.Duration
	// Faults are the initial faults. Default: none.
	Faults Faults
	// Now is the clock for the times of charges and refunds. Default: [time.Now].
	Now func() time.Time `json:"-"`
	// Logger logs failures inside the provider. Default: nothing is logged.
	Logger *slog.Logger `json:"-"`
}

func (c Config) withDefaults() Config {
	if c.DeclinedAmounts == nil {
		c.DeclinedAmounts = []int64{DeclinedAmount}
	}
	if c.WebhookAttempts <= 0 {
		c.WebhookAttempts = defaultWebhookAttempts
	}
	if c.WebhookBackoff <= 0 {
		c.WebhookBackoff = defaultWebhookBackoff
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Provider is a fake payment provider. It is an http.Handler;
// Start and Serve run it on a port. It is safe for concurrent use.
type Provider struct {
	book    *book
	script  *script
	courier *courier
	mux     *http.ServeMux
	log     *slog.Logger

	// life ends when the provider is closed. A request that is held must outlive its client, but not the provider.
	life context.Context
	end  context.CancelFunc

	mu       sync.Mutex
	closed   bool
	requests sync.WaitGroup
}

// New returns a provider with the contents of its ledger. The caller closes it.
func New(config Config) (*Provider, error) {
	config = config.withDefaults()
	script := newScript()
	if err := script.set(config.Faults); err != nil {
		return nil, err
	}
	book, err := openBook(config)
	if err != nil {
		return nil, err
	}
	p := &Provider{book: book, script: script, log: config.Logger}
	p.life, p.end = context.WithCancel(context.Background())
	p.courier = startCourier(p.life, config)
	p.mux = p.routes()
	return p, nil
}

func (p *Provider) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", p.api(p.postCharge))
	mux.HandleFunc("GET /charges", p.api(p.listCharges))
	mux.HandleFunc("GET /charges/{id}", p.api(p.getCharge))
	mux.HandleFunc("POST /refunds", p.api(p.postRefund))
	mux.HandleFunc("GET /refunds", p.api(p.listRefunds))
	mux.HandleFunc("PUT /faults", p.putFaults)
	mux.HandleFunc("DELETE /faults", p.deleteFaults)
	mux.HandleFunc("PUT /webhook", p.putWebhook)
	mux.HandleFunc("GET /stats", p.getStats)
	mux.HandleFunc("GET /arrived/{name}", p.getArrived)
	mux.HandleFunc("POST /release/{name}", p.postRelease)
	return mux
}

// ServeHTTP answers a request, or applies a fault to it. It may panic with
// http.ErrAbortHandler, which net/http handles by closing the connection.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.begin() {
		p.write(w, failed(&problem{http.StatusServiceUnavailable, codeNotProcessed, "the provider is closed"}))
		return
	}
	defer p.requests.Done()
	p.mux.ServeHTTP(w, r)
}

func (p *Provider) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.requests.Add(1)
	}
	return !p.closed
}

// Ledger returns all effects so far, in order.
func (p *Provider) Ledger() Ledger { return p.book.effects() }

// Charges returns the charges with the given reference that moved money. Tests count effects with it.
func (p *Provider) Charges(reference string) []Charge { return p.Ledger().Charges(reference) }

// Close ends the provider: held requests are cut off, unsent events are dropped, and the ledger
// is closed. It returns when no goroutine of the provider is running. Further calls do nothing.
func (p *Provider) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return nil
	}
	p.end()
	p.requests.Wait()
	p.courier.wait()
	return p.book.close()
}
