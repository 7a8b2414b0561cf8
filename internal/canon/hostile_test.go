package canon_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/canon"
)

const mebibyte = 1 << 20

// These documents are made to be slow: if the work grew with the square of the
// length, most of them would not be done in time.

func TestManyMembersInReverse(t *testing.T) {
	t.Parallel()
	members := make([]string, 100_000)
	for i := range members {
		members[i] = fmt.Sprintf(`"%06d":%d`, i, i)
	}
	want := "{" + strings.Join(members, ",") + "}"
	slices.Reverse(members)
	if got := canonical(t, "{"+strings.Join(members, ",")+"}", nil); got != want {
		t.Errorf("got %.100s, want %.100s", got, want)
	}
}

func TestManyMembersOfOneName(t *testing.T) {
	t.Parallel()
	doc := "{" + strings.Repeat(`"name":1,`, 100_000) + `"name":1}`
	if _, err := canon.Append(nil, []byte(doc), nil); !errors.Is(err, canon.ErrNotJSON) {
		t.Errorf("got %v, want ErrNotJSON", err)
	}
}

func TestManyNamesWithOneBeginning(t *testing.T) {
	t.Parallel()
	members := make([]string, 1000)
	for i := range members {
		members[i] = fmt.Sprintf(`"%s%04d":0`, strings.Repeat("é", 500), i)
	}
	want := "{" + strings.Join(members, ",") + "}"
	slices.Reverse(members)
	if got := canonical(t, "{"+strings.Join(members, ",")+"}", nil); got != want {
		t.Errorf("got %.100s, want %.100s", got, want)
	}
}

func TestReorderedAtEveryDepth(t *testing.T) {
	t.Parallel()
	depth := canon.MaxDepth
	heavy := `"` + strings.Repeat("x", mebibyte) + `"`
	doc := strings.Repeat(`{"b":`, depth) + heavy + strings.Repeat(`,"a":0}`, depth)
	want := strings.Repeat(`{"a":0,"b":`, depth) + heavy + strings.Repeat("}", depth)
	if got := canonical(t, doc, nil); got != want {
		t.Errorf("got %.100s, want %.100s", got, want)
	}
}

func TestManyObjectsAtTheGreatestDepth(t *testing.T) {
	t.Parallel()
	above := canon.MaxDepth - 1
	doc := strings.Repeat("[", above) + strings.Repeat(`{"b":1,"a":2},`, 50_000) + "0" + strings.Repeat("]", above)
	want := strings.ReplaceAll(doc, `"b":1,"a":2`, `"a":2,"b":1`)
	if got := canonical(t, doc, nil); got != want {
		t.Errorf("got %.600s, want %.600s", got, want)
	}
}

func TestLongNumbers(t *testing.T) {
	t.Parallel()
	zeros, nines := strings.Repeat("0", mebibyte), strings.Repeat("9", mebibyte)
	for doc, want := range map[string]string{
		"1" + zeros:        fmt.Sprintf("1e+%d", mebibyte),
		"0." + zeros + "1": fmt.Sprintf("1e-%d", mebibyte+1),
		"1." + zeros:       "1",
		nines:              "9." + nines[1:] + fmt.Sprintf("e+%d", mebibyte-1),
		"1e" + nines:       "1e+" + nines,
		"10e" + nines:      "1e+1" + zeros,
		"0.1e1" + zeros:    "1e+" + nines,
		"1e" + zeros:       "1",
		"1" + zeros + fmt.Sprintf("e-%d", mebibyte): "1",
	} {
		if got := canonical(t, doc, nil); got != want {
			t.Errorf("%.20s became %.20s (%d bytes), want %.20s (%d bytes)", doc, got, len(got), want, len(want))
		}
	}
}

func TestLongStrings(t *testing.T) {
	t.Parallel()
	for from, to := range map[string]string{`\u0041`: "A", `\u0000`: `\u0000`, `\ud83d\ude00`: "😀", "é": "é", `\\`: `\\`} {
		doc, want := `"`+strings.Repeat(from, mebibyte/8)+`"`, `"`+strings.Repeat(to, mebibyte/8)+`"`
		if got := canonical(t, doc, nil); got != want {
			t.Errorf("%s became %.20s, want %.20s", from, got, want)
		}
	}
}

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
