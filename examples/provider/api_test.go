package provider

import (
	"bytes"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// post returns the status, the header and the body as they are on the wire.
func post(t *testing.T, url, key, body string) (int, http.Header, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(bounded(t), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, data
}

func TestChargeIsMadeAndKept(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{LedgerPath: ledgerPath(t), Dedup: true})
	charge := mustCharge(t, client, "k1", order("r1"))
	if charge.Status != Succeeded || charge.IdempotencyKey != "k1" || !charge.equal(order("r1")) || charge.Created.IsZero() {
		t.Errorf("not what was ordered: %+v", charge)
	}
	got, err := client.Get(bounded(t), charge.ID)
	if err != nil || !reflect.DeepEqual(got, charge) {
		t.Errorf("get: %+v, %v; want %+v", got, err, charge)
	}
	if made := server.Charges("r1"); !reflect.DeepEqual(made, []Charge{charge}) {
		t.Errorf("effects %+v, want the one charge", made)
	}
}

func TestSameKeyMakesOneCharge(t *testing.T) {
	t.Parallel()
	server, _ := start(t, Config{LedgerPath: ledgerPath(t), Dedup: true})
	url := server.URL + "/charges"
	const body = `{"amount":5,"currency":"EUR","reference":"r","metadata":{"a":"1","b":"2"}}`
	const sameInOtherWords = `{"metadata":{"b":"2","a":"1"},"reference":"r","currency":"EUR","amount":5}`

	status, _, first := post(t, url, "k", body)
	again, header, second := post(t, url, "k", sameInOtherWords)
	if status != 201 || again != 201 || !bytes.Equal(first, second) {
		t.Errorf("got %d %s, then %d %s; want the same", status, first, again, second)
	}
	if header.Get("Idempotent-Replayed") != "true" {
		t.Error("the second answer does not say that it is a replay")
	}
	if status, _, _ := post(t, url, "k", strings.Replace(body, "5", "6", 1)); status != 422 {
		t.Errorf("the key with another body: status %d, want 422", status)
	}
	wantEffects(t, server, "r", 1)
}

func TestSameKeyAtOnceMakesOneCharge(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{LedgerPath: ledgerPath(t), Dedup: true})
	const callers = 16
	ids := make([]string, callers)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			charge, err := client.Charge(bounded(t), "k", order("r"))
			if err != nil {
				t.Error(err)
			}
			ids[i] = charge.ID
		})
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("charges %q and %q for one key", id, ids[0])
		}
	}
	wantEffects(t, server, "r", 1)
}

func TestWithoutDedupTheKeyIsOnlyALabel(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{})
	first := mustCharge(t, client, "k", order("r"))
	second := mustCharge(t, client, "k", order("r"))
	if first.ID == second.ID {
		t.Error("a provider without idempotency made one charge of two requests")
	}
	wantEffects(t, server, "r", 2)
	found, err := client.FindReference(bounded(t), "r")
	if err != nil || len(found) != 2 {
		t.Errorf("found %d, %v; want both", len(found), err)
	}
}

func TestRequestsWithoutKeyAreApart(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{Dedup: true})
	mustCharge(t, client, "", order("r"))
	mustCharge(t, client, "", order("r"))
	wantEffects(t, server, "r", 2)
}

func TestDeclinedChargeIsKnownButNoEffect(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{LedgerPath: ledgerPath(t), Dedup: true})
	req := order("r")
	req.Amount = DeclinedAmount
	for range 2 {
		charge, err := client.Charge(bounded(t), "k", req)
		if outcome(err) != "declined" || charge.ID != "" {
			t.Fatalf("charge %+v, %v; want a decline", charge, err)
		}
	}
	found, ok, err := client.Find(bounded(t), "k")
	if err != nil || !ok || found.Status != Declined {
		t.Errorf("find: %+v, %v, %v; want the declined charge", found, ok, err)
	}
	wantEffects(t, server, "r", 0)
	if len(server.Ledger()) != 0 {
		t.Error("a decline is among the effects")
	}
}

func TestRefunds(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{LedgerPath: ledgerPath(t), Dedup: true})
	charge := mustCharge(t, client, "k", order("r"))
	declinedCharge := order("d")
	declinedCharge.Amount = DeclinedAmount
	_, _ = client.Charge(bounded(t), "d", declinedCharge)
	steps := []struct {
		key, charge string
		amount      int64
		want        string
	}{
		{"r1", charge.ID, 4000, "done"},
		{"r1", charge.ID, 4000, "done"},
		{"r1", charge.ID, 3000, "refused idempotency_key_reused"},
		{"r2", charge.ID, 201, "refused refund_too_large"},
		{"k", charge.ID, 200, "done"},
		{"r3", "ch_none", 1, "refused not_found"},
		{"r4", charge.ID, 0, "refused invalid_request"},
		{"r5", "ch_000000000002", 1, "refused refund_too_large"},
	}
	for _, step := range steps {
		_, err := client.Refund(bounded(t), step.key, RefundRequest{Charge: step.charge, Amount: step.amount})
		if got := outcome(err); got != step.want {
			t.Errorf("refund %+v: %s", step, got)
		}
	}
	if made := server.Ledger().Refunds(charge.ID); len(made) != 2 || made[0].Amount != 4000 || made[1].Amount != 200 {
		t.Errorf("refunds %+v, want 4000 and 200", made)
	}
}

func TestMalformedRequestsAreRefused(t *testing.T) {
	t.Parallel()
	server, _ := start(t, Config{Dedup: true})
	const good = `{"amount":5,"currency":"EUR","reference":"r"}`
	for name, c := range map[string]struct{ path, key, body string }{
		"no JSON":          {"/charges", "k", "amount=5"},
		"two values":       {"/charges", "k", good + good},
		"unknown field":    {"/charges", "k", `{"amount":5,"currency":"EUR","referense":"r"}`},
		"no amount":        {"/charges", "k", `{"currency":"EUR"}`},
		"no currency":      {"/charges", "k", `{"amount":5}`},
		"key too long":     {"/charges", strings.Repeat("k", 256), good},
		"body too long":    {"/charges", "k", good + strings.Repeat(" ", maxBody)},
		"refund of naught": {"/refunds", "k", `{"amount":5}`},
	} {
		if status, _, body := post(t, server.URL+c.path, c.key, c.body); status != 400 {
			t.Errorf("%s: %d %s, want 400", name, status, body)
		}
	}
	wantEffects(t, server, "r", 0)
}

func TestPages(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{Dedup: true})
	var made []Charge
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		made = append(made, mustCharge(t, client, key, order("r-"+key)))
	}
	first, err := client.List(bounded(t), made[1].Created, "", 2)
	if err != nil || !reflect.DeepEqual(first, Page{Data: made[1:3], HasMore: true}) {
		t.Errorf("first page %+v, %v; want b and c, and more", first, err)
	}
	second, err := client.List(bounded(t), made[1].Created, made[2].ID, 2)
	if err != nil || !reflect.DeepEqual(second, Page{Data: made[3:]}) {
		t.Errorf("second page %+v, %v; want d and e, and no more", second, err)
	}
	from, to := made[1].Created.Format(time.RFC3339Nano), made[2].Created.Format(time.RFC3339Nano)
	var between Page
	err = client.call(bounded(t), "GET", "/charges?created_from="+from+"&created_to="+to, "", nil, &between)
	if err != nil || !reflect.DeepEqual(between, Page{Data: made[1:2]}) {
		t.Errorf("between %+v, %v; want b alone", between, err)
	}
	if _, ok, err := client.Find(bounded(t), "none"); ok || err != nil {
		t.Errorf("find of a key that was never used: %v, %v", ok, err)
	}
	if _, ok, err := client.Find(bounded(t), ""); ok || outcome(err) != "look-up failed 400" {
		t.Errorf("find of an empty key: %v, %v", ok, err)
	}
	for _, bad := range []string{"reference=", "limit=0", "limit=1001", "limit=x", "created_from=yesterday", "created_to=1"} {
		res, err := http.Get(server.URL + "/charges?" + bad)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 400 {
			t.Errorf("%s: status %d, want 400", bad, res.StatusCode)
		}
	}
}
