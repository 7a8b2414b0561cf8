package canon_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/onceward/onceward/internal/canon"
)

func FuzzAppend(f *testing.F) {
	for _, doc := range documents() {
		if len(doc) < 2000 {
			f.Add(doc)
		}
	}
	for _, doc := range []string{
		``, `null`, ` [ true , false ] `, `{"b":1,"a":{"d":[],"c":{}}}`, `{"a":1,"\u0061":2}`, `{"a":{"x":1,"x":2},"b":[1,2]}`,
		`"\ud83d\ude00\ud800"`, `"\u0000\u001f\"\\\/\b\f\n\r\t\u2028"`, "{\"\ufb33\":1,\"😀\":2,\"é\":3,\"\\r\":4}", "\"\xff\"",
		`[0,-0,1.50,1e400,1e21,1e-7,0.000001,123456789012345678901.5,9007199254740993]`,
		`[1e99999999999999999999,10e-99999999999999999999]`, `[[[[[[{"a":[{"b":[[]]}]}]]]]]]`, `[01]`, `{"a":1}x`,
	} {
		f.Add([]byte(doc))
	}
	selections := []*canon.Selection{
		mustSelect(f, nil, []string{"/a", "/0", "/b/1", "/c/a"}),
		mustSelect(f, []string{"/a/b", "/1", "/b"}, []string{"/b/a"}),
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		original := bytes.Clone(doc)
		got, err := canon.Append([]byte("x"), doc, nil)
		if !bytes.Equal(doc, original) {
			t.Fatalf("Append changed %q to %q", original, doc)
		}
		want, accepted, known := foretell(doc)
		if err == nil {
			checkForm(t, got[1:])
		} else if !errors.Is(err, canon.ErrNotJSON) || string(got) != "x" {
			t.Fatalf("refused with %v and %q", err, got)
		}
		if known && accepted != (err == nil) {
			t.Fatalf("error %v, but the oracle accepts: %v", err, accepted)
		}
		if known && accepted && string(got) != "x"+want {
			t.Fatalf("got  %s\nwant x%s", got, want)
		}
		for _, sel := range selections {
			if _, selErr := canon.Append(nil, doc, sel); (selErr == nil) != (err == nil) {
				t.Fatalf("error %v without a selection, %v with one", err, selErr)
			}
		}
	})
}

// checkForm checks what holds for each canonical form.
func checkForm(t *testing.T, form []byte) {
	t.Helper()
	if !json.Valid(form) {
		t.Fatalf("canonical form is not JSON: %s", form)
	}
	again, err := canon.Append(nil, form, nil)
	if err != nil || !bytes.Equal(again, form) {
		t.Fatalf("not idempotent: %s\nbecame %s, %v", form, again, err)
	}
}
