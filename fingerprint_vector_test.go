package onceward_test

import (
	"encoding/hex"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// TestFingerprintVectors holds the rules to what they are: a record outlives the program that made it (F1). A change
// that makes this fail needs a new version of the rules.
func TestFingerprintVectors(t *testing.T) {
	t.Parallel()
	named := onceward.OperationName("pay")
	for _, vector := range []struct {
		name    string
		request variant
		options []onceward.Option
		sum     string
	}{
		{
			"JSON", jsonBody(`{"amount": 1.0, "to": "x"}`), nil,
			"c6be1bd03f42d5cf639c3c62dc1ec4bdb50b950b78a3ce37e1a46c667fcd155d",
		},
		{
			"JSON, by name", jsonBody(`{"amount": 1.0, "to": "x"}`),
			[]onceward.Option{named},
			"81f647d52ab1479a67da260dabae23e4233eb3ced7540bb4b3aac488bf3b828a",
		},
		{
			"JSON, by name, PATCH",
			variant{method: http.MethodPatch, body: `{"amount": 1.0, "to": "x"}`},
			[]onceward.Option{named},
			"1a61f4c735f6698a49796a97d1791606f868a5f97a61636bebe8c60d9c5c9603",
		},
		{
			"a query",
			variant{target: "/a%2Fb?y=2&x=1&x=0"},
			nil,
			"57b2d800717a6cbda3b0d3b4b9845970debe1d35b3d8d0880052783f0a0312e5",
		},
		{
			"a form", form("b=2&a=1"), nil,
			"08587e70de0c2e56bbf8c54b5d632d28ae696414b9cd7482f04fd6dd7c7e9ba5",
		},
		{
			"multipart", multipartBody("one", "7"), nil,
			"519730489f6a00adab5e81f199521759aba50e5840cfef00cf0219d57736691f",
		},
		{
			"raw",
			variant{body: "a", media: "text/plain"},
			nil,
			"9b738232beba056e710e4a50d16287cbe88eafffabf7ad41c66d797482297d45",
		},
	} {
		t.Run(vector.name, func(t *testing.T) {
			t.Parallel()
			store := memory.New()
			options := append([]onceward.Option{onceward.Reserved(onceward.FailureUnknown)}, vector.options...)
			serve(newGuard(t, store).Handler(new(counted), options...), vector.request.request("k"))
			f := recordOf(t, store, "k").Fingerprint
			if got := hex.EncodeToString(f.Sum[:]); f.Rules != 2 || got != vector.sum {
				t.Errorf("F1: rules %d: %s, want rules 2: %s", f.Rules, got, vector.sum)
			}
		})
	}
	t.Run("a call", func(t *testing.T) {
		t.Parallel()
		store := memory.New()
		_, err := newGuard(t, store).Do(t.Context(), someCall, new(work).do, onceward.Reserved(onceward.FailureUnknown))
		if err != nil {
			t.Fatal(err)
		}
		rec, err := store.Get(t.Context(), onceward.ID{Scope: someCall.Scope, Key: someCall.Key})
		if err != nil {
			t.Fatal(err)
		}
		const want = "4848734f17ae57b595d20e44f6906988247183ca1d5aa8e59793e2155ab96d93"
		if got := hex.EncodeToString(rec.Fingerprint.Sum[:]); rec.Fingerprint.Rules != 1 || got != want {
			t.Errorf("F1: rules %d: %s, want rules 1: %s", rec.Fingerprint.Rules, got, want)
		}
	})
}
