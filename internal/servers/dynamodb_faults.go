package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

// DynamoDBFault is a fault of one request.
type DynamoDBFault int

// These are the faults of a request.
const (
	// DynamoDBNotSent closes the connection before the request is sent.
	DynamoDBNotSent DynamoDBFault = iota
	// DynamoDBReplyLost lets the server execute the request, and closes the connection before the reply arrives.
	DynamoDBReplyLost
	// DynamoDBSentLater closes the connection, and delivers the request later anyway, as a network may.
	DynamoDBSentLater
	// DynamoDBThrottled refuses the request as the service does when it has no capacity left.
	DynamoDBThrottled
	// DynamoDBLate delays the reply.
	DynamoDBLate
	dynamodbFaults
)

var dynamodbFaultNames = [dynamodbFaults]string{"not sent", "reply lost", "sent later", "throttled", "late"}

// String returns the name of the fault.
func (f DynamoDBFault) String() string { return dynamodbFaultNames[f] }

// DynamoDBTransport is a transport for clients of DynamoDB that counts their requests and disturbs
// some of them, at random or on request, which no emulator does. It is safe for concurrent use.
type DynamoDBTransport struct {
	inner http.RoundTripper

	mu       sync.Mutex
	random   *rand.Rand
	rates    map[DynamoDBFault]float64
	longest  time.Duration
	armed    []*dynamodbTrap
	fired    map[DynamoDBFault]int
	requests map[string]int
	later    sync.WaitGroup
}

// dynamodbTrap is a fault for the next requests of a kind.
type dynamodbTrap struct {
	fault DynamoDBFault
	match func(operation string) bool
	left  int
}

// NewDynamoDBTransport returns a transport without faults. Its random decisions depend on the seed.
func NewDynamoDBTransport(seed uint64) *DynamoDBTransport {
	inner := http.DefaultTransport.(*http.Transport).Clone()
	inner.MaxIdleConnsPerHost = 64
	return &DynamoDBTransport{
		inner: inner, random: rand.New(rand.NewPCG(seed, seed)), fired: make(map[DynamoDBFault]int),
		requests: make(map[string]int), longest: 50 * time.Millisecond,
	}
}

// Disturb sets the rates of random faults. Replies and requests are delayed by at most longest.
func (t *DynamoDBTransport) Disturb(longest time.Duration, rates map[DynamoDBFault]float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rates, t.longest = maps.Clone(rates), longest
}

// Arm sets a fault for the next requests whose operation matches, such as PutItem, as many as times.
func (t *DynamoDBTransport) Arm(fault DynamoDBFault, times int, match func(operation string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed = append(t.armed, &dynamodbTrap{fault: fault, match: match, left: times})
}

// Fired returns how often each fault has happened.
func (t *DynamoDBTransport) Fired() map[DynamoDBFault]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.fired)
}

// Requests returns the number of requests of each operation since the last call.
func (t *DynamoDBTransport) Requests() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	made := t.requests
	t.requests = make(map[string]int)
	return made
}

// Close waits for the requests that are delivered later, and closes the connections.
func (t *DynamoDBTransport) Close() {
	t.later.Wait()
	t.inner.(*http.Transport).CloseIdleConnections()
}

// RoundTrip implements [http.RoundTripper].
func (t *DynamoDBTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	fault, happens, delay := t.next(r)
	if !happens {
		return t.inner.RoundTrip(r)
	}
	switch fault {
	case DynamoDBNotSent:
		return nil, errors.Join(drain(r), connectionReset("write"))
	case DynamoDBReplyLost:
		if err := t.deliver(r); err != nil {
			return nil, err
		}
		return nil, connectionReset("read")
	case DynamoDBSentLater:
		return nil, t.deliverLater(r, delay)
	case DynamoDBThrottled:
		return throttled(r), drain(r)
	default:
		response, err := t.inner.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		if err := pause(r.Context(), delay); err != nil {
			_ = response.Body.Close() // its caller has left
			return nil, err
		}
		return response, nil
	}
}

// next counts a request and returns its fault.
func (t *DynamoDBTransport) next(r *http.Request) (fault DynamoDBFault, happens bool, delay time.Duration) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests[operation]++
	delay = time.Duration(t.random.Int64N(int64(t.longest) + 1))
	for _, trap := range t.armed {
		if trap.left > 0 && trap.match(operation) {
			trap.left--
			t.fired[trap.fault]++
			return trap.fault, true, delay
		}
	}
	chance := t.random.Float64()
	for fault = range dynamodbFaults {
		if chance -= t.rates[fault]; chance < 0 {
			t.fired[fault]++
			return fault, true, delay
		}
	}
	return 0, false, 0
}

// deliver lets the server execute the request, and drops its reply.
func (t *DynamoDBTransport) deliver(r *http.Request) error {
	response, err := t.inner.RoundTrip(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close() // the reply is not used
	return err
}

// deliverLater lets the server execute the request later, even if its caller has left by then.
func (t *DynamoDBTransport) deliverLater(r *http.Request, delay time.Duration) error {
	body, err := io.ReadAll(r.Body)
	_ = r.Body.Close() // it was read to its end
	if err != nil {
		return err
	}
	later := r.Clone(context.WithoutCancel(r.Context()))
	later.Body = io.NopCloser(bytes.NewReader(body))
	t.later.Go(func() {
		time.Sleep(delay)
		_ = t.deliver(later) // nobody waits for it
	})
	return connectionReset("read")
}

// drain reads a request that is not sent, as a transport must.
func drain(r *http.Request) error {
	if r.Body == nil {
		return nil
	}
	_, err := io.Copy(io.Discard, r.Body)
	_ = r.Body.Close() // it was read to its end
	return err
}

// connectionReset returns the error of a connection that was closed.
func connectionReset(op string) error {
	return &net.OpError{Op: op, Net: "tcp", Err: fmt.Errorf("cut by the test: %w", syscall.ECONNRESET)}
}

// throttled returns the refusal of a service without capacity.
func throttled(r *http.Request) *http.Response {
	const body = `{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",` +
		`"message":"The level of configured provisioned throughput for the table was exceeded."}`
	return &http.Response{
		StatusCode: http.StatusBadRequest, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}}, ContentLength: int64(len(body)),
		Body: io.NopCloser(strings.NewReader(body)),
	}
}

// pause waits for a time, or until the caller leaves.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
