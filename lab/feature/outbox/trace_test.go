package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

func newTracer(t testing.TB, s outbox.Store, config outbox.TracerConfig) *outbox.Tracer {
	t.Helper()
	tracer, err := outbox.NewTracer(s, config)
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

// consumers apply each event that is published to them once, in their own database.
type consumers struct {
	box   *inbox.Inbox
	names []string
}

func (c consumers) Publish(ctx context.Context, e *outbox.Event) error {
	for _, name := range c.names {
		_, err := c.box.Handle(ctx, name, e.ID, func(ctx context.Context) error { return write(ctx, name+"/"+e.Type) })
		if err != nil {
			return err
		}
	}
	return nil
}

// publishes publishes a message, and knows what the broker calls it.
func publishes(p outbox.Publisher) outbox.Handler {
	return func(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
		result, err := outbox.Publish(p)(ctx, d)
		result.ProviderID = "offset-" + d.Type
		return result, err
	}
}

// wayOfARequest sends a request that adds two messages, and delivers them to consumers with a database of their own.
func wayOfARequest(b, elsewhere *bench) {
	b.Helper()
	server := httptest.NewServer(adding(b, b.box, about("a", "charged"), about("a", "booked")))
	defer server.Close()
	for range 2 {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, server.URL, strings.NewReader(`{}`))
		b.must(err)
		r.Header.Set("Idempotency-Key", "k")
		answer, err := server.Client().Do(r)
		b.must(err)
		b.must(answer.Body.Close())
		if answer.StatusCode != http.StatusCreated {
			b.Fatalf("the answer is %s", answer.Status)
		}
	}
	elsewhere.createBook()
	broker := consumers{inbox.New(elsewhere.store), []string{"ledger", "mailer"}}
	b.run(b.worker(b.store, outbox.Route{Handler: publishes(broker)}), outbox.Report{Delivered: 2})
	elsewhere.wantLines("applied", "ledger/charged mailer/charged ledger/booked mailer/booked")
}

// TestTrace: from the client's key, from the ID that consumers see, and from the key that a receiver sees leads the
// same trail, over all that is kept on the way.
func TestTrace(t *testing.T) {
	t.Parallel()
	b, elsewhere := newBench(t), newBench(t)
	wayOfARequest(b, elsewhere)
	b.add(about("a", "other"))
	tracer := newTracer(t, b.store, outbox.TracerConfig{Inboxes: []inbox.Store{elsewhere.store}})
	request := store.ID{Scope: "shop", Key: "k"}
	trails, err := tracer.Trace(t.Context(), outbox.TraceQuery{Request: request})
	if err != nil || len(trails) != 2 {
		t.Fatalf("there are %d trails, %v", len(trails), err)
	}
	for i, name := range []string{"charged", "booked"} {
		trail := trails[i]
		if trail.Request != request || trail.Record == nil || trail.Record.State != store.StateCompleted ||
			trail.Record.ID != request {
			t.Errorf("%s comes from %v, which is %+v", name, trail.Request, trail.Record)
		}
		if trail.Message.Type != name || trail.Message.State != outbox.StateDone ||
			trail.Message.ProviderID != "offset-"+name {
			t.Errorf("the message is %+v", trail.Message)
		}
		if c := trail.Consumers; len(c) != 2 || c[0].Consumer != "ledger" || c[1].Consumer != "mailer" ||
			c[0].EventID != trail.Message.ID {
			t.Errorf("%s was consumed by %+v", name, c)
		}
		for _, query := range []outbox.TraceQuery{
			{MessageID: trail.Message.ID}, {DownstreamKey: trail.Message.DownstreamKey},
		} {
			same, err := tracer.Trace(t.Context(), query)
			if err != nil || !reflect.DeepEqual(same, trails) {
				t.Errorf("%+v leads to %+v, %v", query, same, err)
			}
		}
	}
}

// TestTraceWithoutARequest: a message that no operation added has a trail of its own, over the store that it is in.
func TestTraceWithoutARequest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.createBook()
	ids := b.add(about("a", "m"), about("a", "n"))
	own := consumers{inbox.New(b.store), []string{"mailer"}}
	b.run(b.worker(b.store, outbox.Route{Handler: publishes(own)}), outbox.Report{Delivered: 2})
	trails, err := newTracer(t, b.store, outbox.TracerConfig{}).Trace(t.Context(), outbox.TraceQuery{MessageID: ids[1]})
	if err != nil || len(trails) != 1 {
		t.Fatalf("there are %d trails, %v", len(trails), err)
	}
	if trail := trails[0]; trail.Record != nil || trail.Message.ID != ids[1] || len(trail.Consumers) != 1 {
		t.Errorf("the trail is %+v", trail)
	}
	alone, err := newTracer(t, withoutRecords{b.store}, outbox.TracerConfig{}).
		Trace(t.Context(), outbox.TraceQuery{MessageID: ids[1]})
	if err != nil || len(alone) != 1 || alone[0].Consumers != nil {
		t.Errorf("where there is nothing else the trail is %+v, %v", alone, err)
	}
}

// TestTraceAfterTheRecord: a trail is there also when the record of its request is not any more.
func TestTraceAfterTheRecord(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	post(adding(b, b.box, about("a", "m")), "k")
	records := newBench(t) // one that has never heard of it
	tracer := newTracer(t, b.store, outbox.TracerConfig{Records: records.store})
	trails, err := tracer.Trace(t.Context(), outbox.TraceQuery{Request: store.ID{Scope: "shop", Key: "k"}})
	if err != nil || len(trails) != 1 || trails[0].Record != nil || trails[0].Request.Key != "k" {
		t.Errorf("the trail is %+v, %v", trails, err)
	}
}

// longStore has many messages of one operation.
type longStore struct {
	outbox.Store
	entries []outbox.Entry
}

func (s *longStore) Messages(_ context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	from := 1 + slices.IndexFunc(s.entries, func(e outbox.Entry) bool { return e.ID == f.After })
	return s.entries[from:min(from+f.Limit, len(s.entries))], nil
}

// TestManyTrails: an operation that added more messages than fit on a page has them all.
func TestManyTrails(t *testing.T) {
	t.Parallel()
	request := store.ID{Scope: "shop", Key: "k"}
	for _, n := range []int{999, 1000, 2500} {
		store := new(longStore)
		for i := range n {
			store.entries = append(store.entries, outbox.Entry{ID: fmt.Sprint("m", i), Origin: request})
		}
		trails, err := newTracer(t, store, outbox.TracerConfig{}).Trace(t.Context(), outbox.TraceQuery{Request: request})
		if err != nil || len(trails) != n || trails[n-1].Message.ID != store.entries[n-1].ID {
			t.Errorf("there are %d trails of %d, %v", len(trails), n, err)
		}
	}
}

func TestTraceLeadsNowhere(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.add(about("a", "m"))
	tracer := newTracer(t, b.store, outbox.TracerConfig{})
	if _, err := tracer.Trace(t.Context(), outbox.TraceQuery{}); err == nil ||
		!strings.Contains(err.Error(), "a trace needs a query") {
		t.Errorf("without a query: %v", err)
	}
	for _, query := range []outbox.TraceQuery{
		{Request: store.ID{Scope: "shop", Key: "k"}}, {MessageID: "no such id"}, {DownstreamKey: "no such key"},
	} {
		if trails, err := tracer.Trace(t.Context(), query); !errors.Is(err, store.ErrNotFound) || trails != nil {
			t.Errorf("%+v leads to %+v, %v", query, trails, err)
		}
	}
}

// TestTraceOfWhatFollows: a message that is added when another one is finished belongs to the same request, and its
// downstream key is the same if all of it happens again.
func TestTraceOfWhatFollows(t *testing.T) {
	t.Parallel()
	follow := func(b *bench) []outbox.Trail {
		server := httptest.NewServer(adding(b, b.box, about("a", "charge")))
		defer server.Close()
		r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, server.URL, strings.NewReader(`{}`))
		b.must(err)
		r.Header.Set("Idempotency-Key", "k")
		answer, err := server.Client().Do(r)
		b.must(err)
		b.must(answer.Body.Close())
		handler := func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.Type != "charge" {
				return outbox.Result{}, nil
			}
			return outbox.Result{Then: func(ctx context.Context) error {
				for _, kind := range []string{"charged", "booked"} {
					if _, err := b.box.Add(ctx, onceward.Tx(ctx), about("a", kind)); err != nil {
						return err
					}
				}
				return nil
			}}, nil
		}
		b.run(b.worker(b.store, outbox.Route{Handler: handler}), outbox.Report{Delivered: 3})
		trails, err := newTracer(t, b.store, outbox.TracerConfig{}).
			Trace(b.Context(), outbox.TraceQuery{Request: store.ID{Scope: "shop", Key: "k"}})
		b.must(err)
		return trails
	}
	once, again := follow(newBench(t)), follow(newBench(t))
	keys := make(map[string]bool)
	for i, kind := range []string{"charge", "charged", "booked"} {
		if len(once) != 3 || once[i].Message.Type != kind || once[i].Record == nil {
			t.Fatalf("the trails of the request are %+v", once)
		}
		keys[once[i].Message.DownstreamKey] = true
		if once[i].Message.DownstreamKey != again[i].Message.DownstreamKey {
			t.Errorf("%s has another downstream key when the same request is executed again", kind)
		}
	}
	if len(keys) != 3 {
		t.Errorf("three messages have %d downstream keys", len(keys))
	}
}
