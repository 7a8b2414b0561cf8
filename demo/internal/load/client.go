package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/backoff"
)

const (
	// patience is how long a client waits for one answer.
	patience = 3 * time.Second
	// The pauses between attempts grow from firstPause to
	// longestPause. Clients do not wait as long as Retry-After asks.
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
	// watchPause is the time between two checks of a payment that is to be charged.
	watchPause = 150 * time.Millisecond
)

// client handles one order from the first request to the last.
type client struct {
	load *Load
	draw *rand.Rand
}

// outcome is the result of one request: a definitive answer, or a description of what happened instead.
type outcome struct {
	answer *Answer
	seen   string
}

// insist sends the request until there is a definitive answer or the context ends.
func (c *client) insist(ctx context.Context, o *Order, path string) Note {
	note := Note{Order: *o, LastSeen: unasked}
	for failures := 0; !note.Answered() && ctx.Err() == nil; failures++ {
		if failures > 0 {
			backoff.Sleep(ctx, backoff.Jittered(firstPause, longestPause, failures))
		}
		c.attempt(ctx, &note, path)
	}
	if note.Answered() && c.draw.Float64() < askAgainRate {
		c.load.faults.add(AskAgain)
		note.add(c.send(ctx, o, path, ""))
	}
	return note
}

// attempt sends the request, with a fault chosen at random.
func (c *client) attempt(ctx context.Context, note *Note, path string) {
	fault := drawFault(c.draw)
	if fault != "" {
		c.load.faults.add(fault)
	}
	if fault != Overlap {
		note.add(c.send(ctx, &note.Order, path, fault))
		return
	}
	var outcomes [2]outcome
	var both sync.WaitGroup
	for i := range outcomes {
		both.Go(func() { outcomes[i] = c.send(ctx, &note.Order, path, "") })
	}
	both.Wait()
	for _, each := range outcomes {
		note.add(each)
	}
}

// send sends one request. With a fault, the client never sees the answer.
func (c *client) send(ctx context.Context, o *Order, path string, fault Fault) outcome {
	c.load.sent.Add(1)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body := io.Reader(bytes.NewReader(o.body()))
	switch fault {
	case LeaveEarly:
		time.AfterFunc(rand.N(leaveWithin), cancel)
	case CutRequest:
		body = newCutReader(o.body())
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.load.target()+path, body)
	if err != nil {
		return outcome{seen: err.Error()}
	}
	request.ContentLength = int64(len(o.body()))
	request.Header.Set("Authorization", "Bearer "+o.Account)
	request.Header.Set("Idempotency-Key", o.Key)
	request.Header.Set("Content-Type", "application/json")
	response, err := c.load.config.HTTP.Do(request)
	if err != nil {
		return outcome{seen: err.Error()}
	}
	defer response.Body.Close()
	if fault != "" {
		return outcome{seen: string(fault)} // closing the body unread closes the connection
	}
	return read(response)
}

// read returns the outcome of a response.
func read(response *http.Response) outcome {
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return outcome{seen: err.Error()}
	}
	if !definitive(response.StatusCode) {
		return outcome{seen: fmt.Sprintf("%d %s", response.StatusCode, body)}
	}
	return outcome{answer: &Answer{
		Status: response.StatusCode, Location: response.Header.Get("Location"),
		ContentType: response.Header.Get("Content-Type"), Body: string(body),
	}}
}

// awaitCharge waits until a payment is no longer pending or the context ends.
func (c *client) awaitCharge(ctx context.Context, account, location string) {
	for ctx.Err() == nil && c.pending(ctx, account, location) {
		backoff.Sleep(ctx, watchPause)
	}
}

// pending reports whether a payment is pending. A payment that cannot be read counts as pending.
func (c *client) pending(ctx context.Context, account, location string) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.load.target()+location, nil)
	if err != nil {
		return true
	}
	request.Header.Set("Authorization", "Bearer "+account)
	response, err := c.load.config.HTTP.Do(request)
	if err != nil {
		return true
	}
	defer response.Body.Close()
	var payment struct{ State string }
	err = json.NewDecoder(response.Body).Decode(&payment)
	return err != nil || response.StatusCode != http.StatusOK || payment.State == "pending"
}

// Answer is a definitive answer. A retry must get exactly the same answer.
type Answer struct {
	Status      int
	Location    string
	ContentType string
	Body        string
}

// Note is what a client knows about one order.
type Note struct {
	Order
	// Attempts is the number of requests sent for the order.
	Attempts int
	// Answers are the different definitive answers. There should be one.
	Answers []Answer
	// LastSeen is the outcome of the last attempt without a
	// definitive answer, for an order that got no definitive answer.
	LastSeen string
}

// Answered reports whether the client has got a definitive answer.
func (n *Note) Answered() bool { return len(n.Answers) > 0 }

// Succeeded reports whether the first definitive answer was a success.
func (n *Note) Succeeded() bool { return n.Answered() && n.Answers[0].Status == http.StatusCreated }

func (n *Note) add(outcome outcome) {
	n.Attempts++
	switch {
	case outcome.answer == nil:
		n.LastSeen = outcome.seen
	case !slices.Contains(n.Answers, *outcome.answer):
		n.Answers = append(n.Answers, *outcome.answer)
	}
}

// definitive reports whether a status is the final result of an order. For other statuses, the client retries.
func definitive(status int) bool {
	switch status {
	case http.StatusAccepted, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly,
		http.StatusTooManyRequests:
		return false
	default:
		return status >= 200 && status < 500
	}
}
