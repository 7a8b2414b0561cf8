package provider

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// SignatureHeader is the header field with the signature of an event.
	SignatureHeader = "Provider-Signature"

	// EventSucceeded is the type of the event about a charge that moved money.
	EventSucceeded = "charge.succeeded"
	// EventDeclined is the type of the event about a charge that was declined.
	EventDeclined = "charge.declined"
	// EventRefunded is the type of the event about a refund.
	EventRefunded = "refund.succeeded"

	webhookTimeout = 5 * time.Second
	maxWaiting     = 4096
	// heldBack is how long a reordered event waits for the next event if its rule has no delay.
	heldBack = time.Second
)

// Webhook is the destination of events, and the key that signs them.
type Webhook struct {
	// URL is the URL for events. Default: no events are sent.
	URL string `json:"url"`
	// Secret is the key of the signature. Default: empty; events are signed anyway, but the signature proves nothing.
	Secret string `json:"secret"`
}

// Event is the body of a webhook.
type Event struct {
	// ID is the ID of the event. All deliveries of it have the same ID, including duplicates.
	ID string `json:"id"`
	// Type is EventSucceeded, EventDeclined or EventRefunded.
	Type string `json:"type"`
	// Created is when the charge or the refund was made.
	Created time.Time `json:"created"`
	// Data is the charge or the refund.
	Data EventData `json:"data"`
}

// EventData is the subject of an event: either a charge or a refund.
type EventData struct {
	// Object is the charge. It is the zero value, and not sent, in an event about a refund.
	Object Charge `json:"object,omitzero"`
	// Refund is only set for EventRefunded.
	Refund *Refund `json:"refund,omitempty"`
}

// Sign returns the value of SignatureHeader for a body that is sent at the given time: t=<unix
// time>,v1=<hex of the HMAC-SHA256 of "t.body">. It is exported so that a test can forge a webhook.
func Sign(secret string, at time.Time, body []byte) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(stamp + "."))
	mac.Write(body)
	return "t=" + stamp + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

// eventOf returns the event about a charge. Its ID derives from the charge's ID, so that it is always the same.
func eventOf(c Charge) *Event {
	e := &Event{
		ID: "evt_" + strings.TrimPrefix(c.ID, "ch_"), Type: EventSucceeded, Created: c.Created, Data: EventData{Object: c},
	}
	if c.Status == Declined {
		e.Type = EventDeclined
	}
	return e
}

// refundEvent returns the event about a refund. Its ID keeps the prefix
// of the refund's ID: refunds and charges are numbered independently.
func refundEvent(r Refund) *Event {
	return &Event{ID: "evt_" + r.ID, Type: EventRefunded, Created: r.Created, Data: EventData{Refund: &r}}
}

// courier sends the events. The first attempts are made one by one in the order of the charges and refunds, so
// that only a fault changes the order while the receiver answers with 2xx. Further attempts are concurrent.
type courier struct {
	life     context.Context
	client   *http.Client
	log      *slog.Logger
	attempts int
	backoff  time.Duration
	queue    chan parcel
	running  sync.WaitGroup

	mu     sync.Mutex
	target Webhook
}

// parcel is an event to be sent. If it is held back, it waits at most for heldBack.
type parcel struct {
	event    Event
	heldBack time.Duration
}

func startCourier(life context.Context, config Config) *courier {
	c := &courier{
		life: life, client: &http.Client{Transport: &http.Transport{}, Timeout: webhookTimeout}, log: config.Logger,
		attempts: config.WebhookAttempts, backoff: config.WebhookBackoff,
		queue: make(chan parcel, maxWaiting), target: config.Webhook,
	}
	c.running.Go(c.run)
	return c
}

func (c *courier) aim(w Webhook) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target = w
}

func (c *courier) aimedAt() Webhook {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.target
}

// announce queues an event, as the fault requires. The event may be nil.
func (c *courier) announce(event *Event, f fault) {
	if event == nil || c.aimedAt().URL == "" {
		return
	}
	p := parcel{event: *event}
	switch f.Kind {
	case WebhookDrop:
	case WebhookFirst:
		c.deliver(p.event)
	case WebhookDuplicate:
		c.enqueue(p)
		c.enqueue(p)
	case WebhookDelay:
		c.running.Go(func() {
			if c.sleep(f.Delay) {
				c.enqueue(p)
			}
		})
	case WebhookReordered:
		p.heldBack = f.Delay
		if p.heldBack == 0 {
			p.heldBack = heldBack
		}
		c.enqueue(p)
	default:
		c.enqueue(p)
	}
}

// enqueue never blocks the request that caused the event: a provider whose queue is full loses events.
func (c *courier) enqueue(p parcel) {
	select {
	case c.queue <- p:
	default:
		c.log.Warn("an event is lost, since too many are waiting", "event", p.event.ID)
	}
}

func (c *courier) run() {
	var held []parcel
	var over <-chan time.Time
	for {
		select {
		case <-c.life.Done():
			return
		case p := <-c.queue:
			if p.heldBack > 0 {
				held, over = append(held, p), time.After(p.heldBack)
				continue
			}
			c.deliver(p.event)
		case <-over:
		}
		for _, p := range held {
			c.deliver(p.event)
		}
		held, over = nil, nil
	}
}

// deliver returns after the first attempt. If it failed, further attempts are
// concurrent, so that a receiver that refuses one event still gets the next event.
func (c *courier) deliver(e Event) {
	if c.attempt(e) {
		return
	}
	c.running.Go(func() {
		for range c.attempts - 1 {
			if !c.sleep(c.backoff) || c.attempt(e) {
				return
			}
		}
		c.log.Warn("an event is given up", "event", e.ID, "attempts", c.attempts)
	})
}

func (c *courier) attempt(e Event) bool {
	if err := c.post(e); err != nil {
		c.log.Debug("an event is not delivered", "event", e.ID, "error", err)
		return false
	}
	return true
}

func (c *courier) post(e Event) error {
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	target := c.aimedAt()
	req, err := http.NewRequestWithContext(c.life, http.MethodPost, target.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(SignatureHeader, Sign(target.Secret, time.Now(), body))
	res, err := c.client.Do(req)
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("answered with %s", res.Status)
	}
	return nil
}

// sleep waits, and reports whether the provider is still open.
func (c *courier) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.life.Done():
		return false
	}
}

// wait returns when all goroutines of the courier have ended. The provider must be closed.
func (c *courier) wait() {
	c.running.Wait()
	c.client.CloseIdleConnections()
}
