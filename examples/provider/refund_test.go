package provider

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"
)

func mustRefund(t *testing.T, c *Client, key string, req RefundRequest) Refund {
	t.Helper()
	refund, err := c.Refund(bounded(t), key, req)
	if err != nil {
		t.Fatalf("refund %s: %v", req.Reference, err)
	}
	return refund
}

// part gives back a little of the charge, so that several refunds fit into it.
func part(charge Charge, reference string) RefundRequest {
	return RefundRequest{Charge: charge.ID, Amount: 10, Reference: reference}
}

func TestRefundIsFoundByItsKey(t *testing.T) {
	t.Parallel()
	config := Config{LedgerPath: ledgerPath(t), Dedup: true}
	server, client := start(t, config)
	charge := mustCharge(t, client, "charge", order("r"))
	mustRefund(t, client, "other", part(charge, "other"))
	refund := mustRefund(t, client, "k", part(charge, "mine"))
	if refund.Reference != "mine" || refund.IdempotencyKey != "k" || refund.Status != Succeeded {
		t.Errorf("not what was ordered: %+v", refund)
	}
	wantFound := func(client *Client) {
		t.Helper()
		found, ok, err := client.FindRefund(bounded(t), "k")
		if err != nil || !ok || found != refund {
			t.Errorf("find: %+v, %v, %v; want %+v", found, ok, err, refund)
		}
	}
	wantFound(client)
	for _, key := range []string{"none", "charge"} {
		if found, ok, err := client.FindRefund(bounded(t), key); ok || err != nil {
			t.Errorf("find of %q, which is no key of a refund: %+v, %v, %v", key, found, ok, err)
		}
	}
	if _, ok, err := client.FindRefund(bounded(t), ""); ok || outcome(err) != "look-up failed 400" {
		t.Errorf("find of an empty key: %v, %v", ok, err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	_, client = start(t, config)
	wantFound(client)
}

func TestRefundsByReference(t *testing.T) {
	t.Parallel()
	config := Config{LedgerPath: ledgerPath(t), Dedup: true}
	server, client := start(t, config)
	charge := mustCharge(t, client, "", order("r"))
	first := mustRefund(t, client, "k1", part(charge, "mine"))
	mustRefund(t, client, "k2", part(charge, "other"))
	mustRefund(t, client, "k3", part(charge, ""))
	second := mustRefund(t, client, "k4", part(charge, "mine"))
	if _, err := client.Refund(bounded(t), "k1", part(charge, "renamed")); outcome(err) != "refused idempotency_key_reused" {
		t.Errorf("the key with another reference: %v", err)
	}
	read, err := ReadLedger(config.LedgerPath)
	if err != nil {
		t.Fatal(err)
	}
	for _, ledger := range []Ledger{server.Ledger(), read} {
		if got := ledger.RefundsByReference("mine"); !slices.Equal(got, []Refund{first, second}) {
			t.Errorf("refunds %+v, want both of that name", got)
		}
		if got := ledger.RefundsByReference("r"); len(got) != 0 {
			t.Errorf("refunds %+v by the reference of the charge, want none", got)
		}
		if got := ledger.Refunds(charge.ID); len(got) != 4 {
			t.Errorf("%d refunds of the charge, want 4", len(got))
		}
	}
}

func TestPagesOfRefunds(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{Dedup: true})
	get := func(query string) (int, string) {
		res, err := http.Get(server.URL + "/refunds?" + query)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if status, body := get("idempotency_key=a"); status != 200 || body != `{"data":[],"has_more":false}` {
		t.Errorf("an empty page is %d %s", status, body)
	}
	charge := mustCharge(t, client, "", order("r"))
	var made []Refund
	for _, key := range []string{"a", "b", "c"} {
		made = append(made, mustRefund(t, client, key, part(charge, "r-"+key)))
	}
	for query, want := range map[string]refundPage{
		"":                             {Data: made},
		"limit=2":                      {Data: made[:2], HasMore: true},
		"limit=2&after=" + made[1].ID:  {Data: made[2:]},
		"idempotency_key=b":            {Data: made[1:2]},
		"reference=r-c":                {Data: made[2:]},
		"idempotency_key=b&after=re_9": {Data: []Refund{}},
		"created_from=" + made[1].Created.Format(time.RFC3339Nano): {Data: made[1:]},
		"created_to=" + made[1].Created.Format(time.RFC3339Nano):   {Data: made[:1]},
	} {
		var page refundPage
		err := client.call(bounded(t), "GET", "/refunds?"+query, "", nil, &page)
		if err != nil || !reflect.DeepEqual(page, want) {
			t.Errorf("%q: %+v, %v; want %+v", query, page, err, want)
		}
	}
	for _, bad := range []string{"idempotency_key=", "reference=", "limit=0", "created_from=yesterday"} {
		if status, _ := get(bad); status != 400 {
			t.Errorf("%s: status %d, want 400", bad, status)
		}
	}
}

// A caller that lost the answer to its refund learns by a look-up, and by the same key, what became of it.
func TestRefundWithALostAnswerIsSettled(t *testing.T) {
	t.Parallel()
	for kind, done := range map[Kind]bool{ErrorBefore: false, ResetBefore: false, ErrorAfter: true, ResetAfter: true} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server, client := start(t, Config{Dedup: true})
			charge := mustCharge(t, client, "k", order("r"))
			mustSet(t, server, Rule{Kind: kind, Match: Match{Path: "/refunds"}, Times: 1})
			if _, err := client.Refund(bounded(t), "k", part(charge, "mine")); outcome(err) != "unknown" {
				t.Fatalf("%v, want an unknown outcome", err)
			}
			found, ok, err := client.FindRefund(bounded(t), "k")
			if err != nil || ok != done {
				t.Errorf("find: %+v, %v, %v; want found %v", found, ok, err, done)
			}
			settled := mustRefund(t, client, "k", part(charge, "mine"))
			if ok && settled != found {
				t.Errorf("settled with %+v, found before %+v", settled, found)
			}
			if made := server.Ledger().RefundsByReference("mine"); len(made) != 1 {
				t.Errorf("%d refunds, want 1", len(made))
			}
		})
	}
}

func TestFaultsMatchARefundByTheReferenceOfItsCharge(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{})
	charge := mustCharge(t, client, "", order("charge"))
	mustSet(t, server, Rule{Kind: ErrorBefore, Match: Match{Reference: "refund"}})
	mustRefund(t, client, "k", part(charge, "refund"))
	mustSet(t, server,
		Rule{Kind: ErrorBefore, Match: Match{Reference: "charge"}},
		Rule{Kind: ErrorBefore, Match: Match{Method: "GET", Path: "/refunds"}, Status: 503, Times: 1},
	)
	if _, err := client.Refund(bounded(t), "", part(charge, "refund")); outcome(err) != "unknown" {
		t.Errorf("%v, want the fault of the charge's reference", err)
	}
	if _, _, err := client.FindRefund(bounded(t), "k"); outcome(err) != "look-up failed 503" {
		t.Errorf("%v, want the fault of the path", err)
	}
	if _, ok, err := client.FindRefund(bounded(t), "k"); !ok || err != nil {
		t.Errorf("find when the fault is spent: %v, %v", ok, err)
	}
}

// The lines of a provider without references of refunds are read, and a line with what this provider does not know too.
func TestLedgerLinesOfOtherVersionsAreRead(t *testing.T) {
	t.Parallel()
	const (
		charge = `{"type":"charge","charge":{"id":"ch_000000000001","status":"succeeded","amount":42,"currency":"EUR",` +
			`"reference":"r","idempotency_key":"k","created":"2026-01-02T03:04:05Z"}}`
		refund = `{"type":"refund","refund":{"id":"re_%012d","status":"succeeded","charge":"ch_000000000001","amount":1%s,` +
			`"idempotency_key":"%s","created":"2026-01-02T03:04:06Z"}}`
	)
	older := fmt.Sprintf(refund, 1, "", "older")
	newer := fmt.Sprintf(refund, 2, `,"reference":"mine","reason":"not known here"`, "newer")
	config := Config{LedgerPath: ledgerPath(t), Dedup: true}
	if err := os.WriteFile(config.LedgerPath, []byte(charge+"\n"+older+"\n"+newer+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server, client := start(t, config)
	for key, reference := range map[string]string{"older": "", "newer": "mine"} {
		found, ok, err := client.FindRefund(bounded(t), key)
		if err != nil || !ok || found.Reference != reference {
			t.Errorf("refund %s: %+v, %v, %v; want reference %q", key, found, ok, err, reference)
		}
		again := mustRefund(t, client, key, RefundRequest{Charge: "ch_000000000001", Amount: 1, Reference: reference})
		if again != found {
			t.Errorf("refund %s is now %+v, was %+v", key, again, found)
		}
	}
	if made := server.Ledger().Refunds("ch_000000000001"); len(made) != 2 {
		t.Errorf("%d refunds, want the 2 of the file", len(made))
	}
}
