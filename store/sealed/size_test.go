package sealed

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/onceward/onceward/store"
)

// typicalJSON is about 4 KiB as an API answers with: a list of payments with random ids and amounts.
func typicalJSON(seed uint64) []byte {
	random := rand.New(rand.NewPCG(seed, 1))
	type payment struct {
		ID       string            `json:"id"`
		Object   string            `json:"object"`
		Amount   int               `json:"amount"`
		Currency string            `json:"currency"`
		Status   string            `json:"status"`
		Customer string            `json:"customer"`
		Created  string            `json:"created_at"`
		Receipt  string            `json:"receipt_url"`
		Metadata map[string]string `json:"metadata"`
	}
	var list struct {
		Object string    `json:"object"`
		Data   []payment `json:"data"`
	}
	list.Object = "list"
	for i := range 15 {
		id := fmt.Sprintf("%016x", random.Uint64())
		list.Data = append(list.Data, payment{
			"pay_" + id, "payment", random.IntN(100_000), "eur", "succeeded", fmt.Sprintf("cus_%08x", random.Uint32()),
			fmt.Sprintf("2026-11-16T20:%02d:%02dZ", i, random.IntN(60)), "https://pay.example/receipts/" + id,
			map[string]string{"order": fmt.Sprint(random.IntN(1_000_000)), "channel": "web"},
		})
	}
	text, err := json.Marshal(list)
	if err != nil {
		panic(err)
	}
	return text
}

func typicalRecord(seed uint64) store.Record {
	return store.Record{
		ID: goldenClaim.ID, Version: store.RecordVersion, State: store.StateCompleted, Operation: "POST /payments",
		Attempt: goldenClaim.Attempt, TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
		Response: store.Response{
			Status: 201, Body: typicalJSON(seed),
			Header: []store.HeaderField{{Name: "Content-Type", Value: "application/json"}, {Name: "Location", Value: "/payments/7"}},
		},
	}
}

// TestSize: a record with 4 KiB of JSON takes a third of what it takes unsealed, and one with a short answer little more.
func TestSize(t *testing.T) {
	t.Parallel()
	s := goldenStore(t, 1)
	size := func(rec store.Record) (before, after int) {
		before = len(rec.AppendBinary(nil))
		content, err := s.sealContent(goldenClaim, rec.Content())
		if err != nil {
			t.Fatal(err)
		}
		rec.Response, rec.Data = content.Response, content.Data
		return before, len(rec.AppendBinary(nil))
	}
	for seed := range uint64(5) {
		rec := typicalRecord(seed)
		if n := len(rec.Response.Body); n < 3800 || n > 4400 {
			t.Fatalf("%d bytes are no 4 KiB", n)
		}
		before, after := size(rec)
		if ratio := float64(after) / float64(before); ratio > 0.34 {
			t.Errorf("a record of %d bytes takes %d sealed, %.2f", before, after, ratio)
		}
	}
	rec := typicalRecord(1)
	rec.Response.Body = []byte(`{"id":"pay_7"}`)
	if before, after := size(rec); after-before > 100 {
		t.Errorf("a record of %d bytes takes %d sealed", before, after)
	}
}

func BenchmarkSeal4K(b *testing.B) {
	s := goldenStore(b, 1)
	rec := typicalRecord(1)
	before := len(rec.AppendBinary(nil))
	var after int
	for b.Loop() {
		sealed, err := s.sealResponse(place{claim: goldenClaim}, rec.Response)
		if err != nil {
			b.Fatal(err)
		}
		after = len(sealed.Header[0].Value) + len(sealed.Body)
	}
	b.ReportMetric(float64(after)/float64(before), "ratio")
}

func BenchmarkOpen4K(b *testing.B) {
	s := goldenStore(b, 1)
	rec := typicalRecord(1)
	sealed, err := s.sealResponse(place{claim: goldenClaim}, rec.Response)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		r := sealed
		if err := s.openResponse(place{claim: goldenClaim}, &r, false); err != nil {
			b.Fatal(err)
		}
	}
}
