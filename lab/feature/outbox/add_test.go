package outbox_test

import (
	"context"
	"database/sql"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// spyStore notes what is added to it, and keeps it, if it has a store to keep it in.
type spyStore struct {
	outbox.Store
	added []outbox.Entry
}

func (s *spyStore) AddMessage(ctx context.Context, tx *sql.Tx, e *outbox.Entry) error {
	s.added = append(s.added, *e)
	if s.Store == nil {
		return nil
	}
	return s.Store.AddMessage(ctx, tx, e)
}

// keys returns the downstream keys of what was added.
func (s *spyStore) keys() (keys []string) {
	for _, e := range s.added {
		keys = append(keys, e.DownstreamKey)
	}
	return keys
}

func newSpy(t *testing.T, store outbox.Store) (*spyStore, *outbox.Outbox) {
	t.Helper()
	spy := &spyStore{Store: store}
	box, err := outbox.New(spy, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return spy, box
}

// TestRefusedMessages: what could not be delivered is not added, and the error says why.
func TestRefusedMessages(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", outbox.MaxName+1)
	tooLong := "is 256 bytes long, and at most 255 are allowed"
	for want, change := range map[string]func(m *outbox.Message){
		`outbox: Message.Type is missing: it says what happened, such as "payment.created"`:                           func(m *outbox.Message) { m.Type = "" },
		"outbox: a payload of 1048577 bytes, and at most 1048576 are allowed: keep it elsewhere and send a reference": func(m *outbox.Message) { m.Payload = make([]byte, outbox.MaxPayload+1) },
		"outbox: a negative Delay of -1ns":                                             func(m *outbox.Message) { m.Delay = -1 },
		"outbox: Message.Topic " + tooLong:                                             func(m *outbox.Message) { m.Topic = long },
		"outbox: Message.AggregateType " + tooLong:                                     func(m *outbox.Message) { m.AggregateType = long },
		"outbox: Message.AggregateID " + tooLong:                                       func(m *outbox.Message) { m.AggregateID = long },
		"outbox: Message.Type " + tooLong:                                              func(m *outbox.Message) { m.Type = long },
		"outbox: Message.ContentType " + tooLong:                                       func(m *outbox.Message) { m.ContentType = long },
		"outbox: Message.Source " + tooLong:                                            func(m *outbox.Message) { m.Source = long },
		"outbox: Message.Subject " + tooLong:                                           func(m *outbox.Message) { m.Subject = long },
		"outbox: Message.Step " + tooLong:                                              func(m *outbox.Message) { m.Step = long },
		`outbox: Message.Topic "a\nb" holds control characters or is not UTF-8`:        func(m *outbox.Message) { m.Topic = "a\nb" },
		`outbox: Message.Subject "a\x7f" holds control characters or is not UTF-8`:     func(m *outbox.Message) { m.Subject = "a\x7f" },
		`outbox: Message.AggregateID "\xff" holds control characters or is not UTF-8`:  func(m *outbox.Message) { m.AggregateID = "\xff" },
		`outbox: the name of header "a b" is not made of letters, digits, "-" and "_"`: func(m *outbox.Message) { m.Headers = map[string]string{"a b": ""} },
		`outbox: the name of header "" is not made of letters, digits, "-" and "_"`:    func(m *outbox.Message) { m.Headers = map[string]string{"": ""} },
		`outbox: header "A-b_9" holds control characters or is not UTF-8`:              func(m *outbox.Message) { m.Headers = map[string]string{"A-b_9": "x\r\n"} },
		"outbox: headers of 8193 bytes, and at most 8192 are allowed":                  func(m *outbox.Message) { m.Headers = map[string]string{"h": strings.Repeat("x", 8192)} },
	} {
		spy, box := newSpy(t, nil)
		m := about("a", "m")
		change(&m)
		if id, err := box.Add(t.Context(), new(sql.Tx), m); err == nil || err.Error() != want || id != "" ||
			len(spy.added) != 0 {
			t.Errorf("got %q, %v, want %s", id, err, want)
		}
	}
}

// TestLargestMessages: what is just as large as it may be is added, and delivered as it was.
func TestLargestMessages(t *testing.T) {
	inTime(t, func(b *bench) {
		long := strings.Repeat("ä", 127) + "x"
		m := outbox.Message{
			Topic: topic, AggregateType: long, AggregateID: long, Type: long, ContentType: long, Source: long, Subject: long, Step: long,
			Payload: make([]byte, outbox.MaxPayload), Headers: map[string]string{"h": strings.Repeat("x", 8191)},
		}
		b.add(m)
		b.run(b.worker(b.store, outbox.Route{Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			got := d.Message
			if got.Type != long || got.AggregateID != long || got.Subject != long || len(got.Payload) != len(m.Payload) ||
				!maps.Equal(got.Headers, m.Headers) {
				b.Errorf("delivered was %.300v", got)
			}
			return outbox.Result{}, nil
		}}), outbox.Report{Delivered: 1})
	})
}

func TestAddNeedsATransaction(t *testing.T) {
	inTime(t, func(b *bench) {
		_, err := b.box.Add(b.Context(), nil, about("a", "m"))
		if err == nil || err.Error() != "outbox: Add needs the transaction that the message belongs to" {
			b.Errorf("without a transaction: %v", err)
		}
	})
}

func TestNewOutbox(t *testing.T) {
	t.Parallel()
	if _, err := outbox.New(nil, outbox.Config{}); err == nil || err.Error() != "outbox: there is no store" {
		t.Errorf("without a store: %v", err)
	}
	if _, err := outbox.New(new(spyStore), outbox.Config{Source: "a\nb"}); err == nil ||
		!strings.Contains(err.Error(), "Message.Source") {
		t.Errorf("with a source of two lines: %v", err)
	}
}

// TestDefaults: what a message does not say is filled in, and what it says stays.
func TestDefaults(t *testing.T) {
	inTime(t, func(b *bench) {
		m := outbox.Message{
			Topic: topic, AggregateType: "payment", AggregateID: "p1", Type: "t", ContentType: "text/plain", Source: "s", Subject: "j", Step: "p",
			Headers: map[string]string{"Trace": "1"},
		}
		before := time.Now()
		ids := b.add(about("p1", "m"), m)
		short, full := b.entry(ids[0]), b.entry(ids[1])
		if short.Source != "https://shop.example" || short.Subject != "p1" || short.ContentType != "application/json" ||
			short.Step != topic {
			b.Errorf("filled in was %+v", short)
		}
		if full.Source != "s" || full.Subject != "j" || full.ContentType != "text/plain" || full.Step != "p" ||
			full.Headers["Trace"] != "1" {
			b.Errorf("kept was %+v", full)
		}
		if short.State != outbox.StateReady || !short.CreatedAt.Equal(before) || !short.Due.Equal(before) ||
			short.Attempts != 0 {
			b.Errorf("it begins as %+v", short)
		}
		spy, box := newSpy(b.T, nil)
		if _, err := box.Add(b.Context(), new(sql.Tx), m); err != nil {
			b.Error(err)
		}
		m.Source = ""
		if _, err := box.Add(b.Context(), new(sql.Tx), m); err != nil || spy.added[1].Source != "onceward" {
			b.Errorf("the source of all sources is %q, %v", spy.added[1].Source, err)
		}
	})
}

// TestDelay: a message is not delivered before it is due.
func TestDelay(t *testing.T) {
	inTime(t, func(b *bench) {
		m := about("", "m")
		m.Delay = time.Minute
		b.add(m)
		w := b.worker(b.store, outbox.Route{Handler: new(clerk).deliver})
		time.Sleep(time.Minute - time.Microsecond)
		b.run(w, outbox.Report{})
		time.Sleep(time.Microsecond)
		b.run(w, outbox.Report{Delivered: 1})
	})
}

// TestStates: the names of states are those that operators see.
func TestStates(t *testing.T) {
	t.Parallel()
	var names []string
	for state := outbox.StateReady; state <= outbox.StateCaptured+1; state++ {
		names = append(names, state.String())
	}
	if got := strings.Join(names, " "); got != "ready leased behind holding done dead captured state 7" {
		t.Errorf("the states are %s", got)
	}
}

// TestEvent: a message leaves as an event of CloudEvents 1.0.
func TestEvent(t *testing.T) {
	t.Parallel()
	e := outbox.Entry{
		Message: outbox.Message{Topic: topic, AggregateType: "payment", AggregateID: "p1", Type: "t", Source: "s", Subject: "j", ContentType: "c", Payload: []byte("d")},
		ID:      "i", DownstreamKey: "k", CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("", 3600)), Origin: store.ID{Key: "x"},
	}
	var attributes []string
	event := e.Event()
	for _, a := range event.Attributes() {
		attributes = append(attributes, a.Name+"="+a.Value)
	}
	want := "specversion=1.0 id=i source=s type=t subject=j time=2026-01-02T02:04:05.000006Z " +
		"partitionkey=payment/p1 idempotencykey=k"
	if got := strings.Join(attributes, " "); got != want || string(event.Data) != "d" || event.ContentType != "c" ||
		event.Topic != topic {
		t.Errorf("the event is %s, %+v", got, event)
	}
	e.AggregateID, e.Subject = "", ""
	for _, a := range e.Event().Attributes() {
		if a.Name == "partitionkey" || a.Name == "subject" {
			t.Errorf("it has the attribute %s=%q", a.Name, a.Value)
		}
	}
}
