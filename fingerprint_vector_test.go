package onceward_test

import (
	"encoding/hex"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
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
			"8a262637b1df64a82d6fcac2764b54d8690f4b0910c69022ee142363218d82a2",
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
			"2479b47344c4973553ec97b07d1b41e2851c55d8d4d32abdff918fe0ed950dab",
		},
		{
			"a form", form("b=2&a=1"), nil,
			"32d193b763191b9d86406aca0623ee75ef71134117f4c00a8b7725fbefdbefa0",
		},
		{
			"multipart", multipartBody("one", "7"), nil,
			"3e41425e797928e66e0cae195457eecc2d1a9247ae62f91de16de4f4c783f666",
		},
		{
			"raw",
			variant{body: "a", media: "text/plain"},
			nil,
			"1b6fd3c5366e0da18bfed8d1b013543cf948034fddb415d791d89c1756a1bcca",
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
		s := memory.New()
		_, err := newGuard(t, s).Do(t.Context(), someCall, new(work).do, onceward.Reserved(onceward.FailureUnknown))
		if err != nil {
			t.Fatal(err)
		}
		rec, err := s.Get(t.Context(), store.ID{Scope: someCall.Scope, Key: someCall.Key})
		if err != nil {
			t.Fatal(err)
		}
		const want = "4848734f17ae57b595d20e44f6906988247183ca1d5aa8e59793e2155ab96d93"
		if got := hex.EncodeToString(rec.Fingerprint.Sum[:]); rec.Fingerprint.Rules != 1 || got != want {
			t.Errorf("F1: rules %d: %s, want rules 1: %s", rec.Fingerprint.Rules, got, want)
		}
	})
}
