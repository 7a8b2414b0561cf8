package canon_test

import (
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
