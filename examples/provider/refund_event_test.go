package provider

import (
	"bytes"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestRefundEvent(t *testing.T) {
	t.Parallel()
	url, deliveries := receive(t, always(200))
	_, client := start(t, Config{Dedup: true, Webhook: Webhook{URL: url, Secret: "s3cret"}})
	charge := mustCharge(t, client, "k", order("r"))
	refund := mustRefund(t, client, "k", part(charge, "mine"))
	mustRefund(t, client, "k", part(charge, "mine"))
	mustRefund(t, client, "k2", part(charge, "next"))

	ofCharge, ofRefund := next(t, deliveries), next(t, deliveries)
	if e := eventIn(t, ofCharge); e.ID != "evt_000000000001" || e.Data.Refund != nil {
		t.Errorf("event of the charge %+v", e)
	}
	if bytes.Contains(ofCharge.body, []byte(`"refund"`)) || bytes.Contains(ofRefund.body, []byte(`"object"`)) {
		t.Errorf("an event is about two things: %s, %s", ofCharge.body, ofRefund.body)
	}
	want := Event{ID: "evt_re_000000000001", Type: "refund.succeeded", Created: refund.Created, Data: EventData{Refund: &refund}}
	if e := eventIn(t, ofRefund); !reflect.DeepEqual(e, want) {
		t.Errorf("event %+v, want %+v", e, want)
	}
	if signature := ofRefund.header.Get(SignatureHeader); !strings.HasPrefix(signature, "t=") {
		t.Errorf("signature %q", signature)
	}
	if e := eventIn(t, next(t, deliveries)); e.ID != "evt_re_000000000002" {
		t.Errorf("event %s; a replay must not send one", e.ID)
	}
}

func TestFaultsOnWebhooksOfRefunds(t *testing.T) {
	t.Parallel()
	refunds := Match{Path: "/refunds", Reference: "charge"}
	for name, c := range map[string]struct {
		rules []Rule
		want  []string
	}{
		"none":      {nil, []string{"a", "b", "c"}},
		"duplicate": {[]Rule{{Kind: WebhookDuplicate, Match: refunds, Times: 1}}, []string{"a", "a", "b", "c"}},
		"drop":      {[]Rule{{Kind: WebhookDrop, Match: refunds, Times: 1}}, []string{"b", "c"}},
		"reordered": {[]Rule{{Kind: WebhookReordered, Match: refunds, Times: 1, Delay: time.Hour}}, []string{"b", "a", "c"}},
		"with an answer that is lost": {
			[]Rule{{Kind: ResetAfter, Match: refunds, Times: 1}, {Kind: WebhookDuplicate, Match: refunds, Times: 1}},
			[]string{"a", "a", "b", "c"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, deliveries := receive(t, always(200))
			_, client := start(t, Config{Webhook: Webhook{URL: url}, Faults: Faults{Rules: c.rules}})
			charge := mustCharge(t, client, "", order("charge"))
			if e := eventIn(t, next(t, deliveries)); e.Type != EventSucceeded {
				t.Errorf("first event %+v, want that of the charge", e)
			}
			for _, reference := range []string{"a", "b", "c"} {
				_, _ = client.Refund(bounded(t), "", part(charge, reference)) // that an answer is lost is part of the table
			}
			var got []string
			for range c.want {
				e := eventIn(t, next(t, deliveries))
				if e.Data.Refund == nil {
					t.Fatalf("event without a refund: %+v", e)
				}
				got = append(got, e.Data.Refund.Reference)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// watched is an answer of which another goroutine can tell whether it has begun.
type watched struct {
	*httptest.ResponseRecorder
	begun atomic.Bool
}

func (w *watched) WriteHeader(status int) {
	w.begun.Store(true)
	w.ResponseRecorder.WriteHeader(status)
}

func TestRefundEventCanComeBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	for kind, want := range map[Kind]bool{WebhookFirst: false, WebhookDuplicate: true} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			answer := &watched{ResponseRecorder: httptest.NewRecorder()}
			begun := make(chan bool, 10)
			url, deliveries := receive(t, func(int) int {
				begun <- answer.begun.Load()
				return 200
			})
			server, client := start(t, Config{Webhook: Webhook{URL: url}})
			charge := mustCharge(t, client, "", order("r"))
			next(t, deliveries) // of the charge
			<-begun
			mustSet(t, server, Rule{Kind: kind, Match: Match{Path: "/refunds"}})
			body := strings.NewReader(`{"charge":"` + charge.ID + `","amount":5}`)
			server.ServeHTTP(answer, httptest.NewRequestWithContext(bounded(t), "POST", "/refunds", body))
			if e := eventIn(t, next(t, deliveries)); e.Type != EventRefunded || answer.Code != 201 {
				t.Errorf("event %+v, answer %d", e, answer.Code)
			}
			if got := <-begun; got != want {
				t.Errorf("had the answer begun when the event came: %v, want %v", got, want)
			}
		})
	}
}

func TestDelayedRefundEventComesAfterItsTime(t *testing.T) {
	t.Parallel()
	url, deliveries := receive(t, always(200))
	server, client := start(t, Config{Webhook: Webhook{URL: url}})
	charge := mustCharge(t, client, "", order("r"))
	next(t, deliveries)
	mustSet(t, server, Rule{Kind: WebhookDelay, Delay: 100 * time.Millisecond, Times: 1})
	begin := time.Now()
	mustRefund(t, client, "", part(charge, "late"))
	if e := eventIn(t, next(t, deliveries)); e.Data.Refund == nil || time.Since(begin) < 100*time.Millisecond {
		t.Errorf("event %+v after %v", e, time.Since(begin))
	}
}
