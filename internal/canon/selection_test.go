package canon_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/canon"
)

func mustSelect(t testing.TB, include, ignore []string) *canon.Selection {
	t.Helper()
	sel, err := canon.Select(include, ignore)
	if err != nil {
		t.Fatal(err)
	}
	return sel
}

func TestSelection(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name            string
		include, ignore []string
		doc, want       string
	}{
		{"empty selection", nil, nil, `{"b":1,"a":2}`, `{"a":2,"b":1}`},
		{"whole document included", []string{""}, nil, `{"b":1,"a":2}`, `{"a":2,"b":1}`},
		{"whole document ignored", nil, []string{""}, `{"b":1,"a":2}`, `_`},
		{"scalar document", []string{"/a"}, nil, `1`, `_`},

		{"member ignored", nil, []string{"/b"}, `{"c":3,"b":[{"y":1,"x":2}],"a":1}`, `{"a":1,"c":3}`},
		{"first member ignored", nil, []string{"/a"}, `{"a":1,"b":2}`, `{"b":2}`},
		{"last member ignored", nil, []string{"/b"}, `{"a":1,"b":2}`, `{"a":1}`},
		{"only member ignored", nil, []string{"/a"}, `{"a":1}`, `{}`},
		{"deep member ignored", nil, []string{"/a/b/c"}, `{"a":{"b":{"d":1,"c":2}},"c":3}`, `{"a":{"b":{"d":1}},"c":3}`},
		{"nothing to ignore", nil, []string{"/x", "/a/b"}, `{"a":1}`, `{"a":1}`},
		{"element ignored", nil, []string{"/1"}, `[1,{"b":1,"a":2},3]`, `[1,_,3]`},
		{"last element ignored", nil, []string{"/1"}, `[1,2]`, `[1,_]`},
		{"only element ignored", nil, []string{"/0"}, `[1]`, `[_]`},
		{"member of an element ignored", nil, []string{"/1/t"}, `[{"t":1},{"t":2,"a":3}]`, `[{"t":1},{"a":3}]`},
		{"element number as a name", nil, []string{"/0"}, `{"0":1,"1":2}`, `{"1":2}`},
		{"not an element number", nil, []string{"/-", "/00", "/+1", "/-1", "/1x"}, `[1,2]`, `[1,2]`},

		{"member included", []string{"/b"}, nil, `{"c":3,"b":[{"y":1,"x":2}],"a":1}`, `{"b":[{"x":2,"y":1}]}`},
		{"null included", []string{"/b"}, nil, `{"b":null}`, `{"b":null}`},
		{"included member absent", []string{"/b"}, nil, `{"a":1}`, `_`},
		{"members included", []string{"/c", "/a"}, nil, `{"c":3,"b":2,"a":1}`, `{"a":1,"c":3}`},
		{"deep member included", []string{"/a/b"}, nil, `{"x":1,"a":{"b":[2],"c":3}}`, `{"a":{"b":[2]}}`},
		{"no way to the included member", []string{"/a/b"}, nil, `{"a":{"c":1}}`, `_`},
		{"scalar in the way", []string{"/a/b", "/c"}, nil, `{"a":1,"c":2}`, `{"c":2}`},
		{"element included", []string{"/1"}, nil, `[1,2,3,4]`, `[_,2]`},
		{"elements included", []string{"/0/a", "/2/a"}, nil, `[{"a":1,"b":2},3,{"a":4},5]`, `[{"a":1},_,{"a":4}]`},
		{"empty array on the way", []string{"/a/0"}, nil, `{"a":[]}`, `_`},
		{"included in included", []string{"/a", "/a/b"}, nil, `{"a":{"b":1,"c":2}}`, `{"a":{"b":1,"c":2}}`},

		{"ignored in included", []string{"/a"}, []string{"/a/b"}, `{"a":{"b":1,"c":2},"d":3}`, `{"a":{"c":2}}`},
		{"included in ignored", []string{"/a/b"}, []string{"/a"}, `{"a":{"b":1,"c":2},"d":3}`, `_`},
		{"both", []string{"/a", "/b"}, []string{"/a"}, `{"a":1,"b":2}`, `{"b":2}`},

		{"slash and tilde", nil, []string{"/a~1b", "/m~0n", "/~01"}, `{"a/b":1,"m~n":2,"~1":3,"x":4}`, `{"x":4}`},
		{"empty name", nil, []string{"/"}, `{"":1,"a":2}`, `{"a":2}`},
		{"escaped name", nil, []string{"/é\"\n"}, `{"\u00e9\u0022\u000a":1,"a":2}`, `{"a":2}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := canonical(t, test.doc, mustSelect(t, test.include, test.ignore)); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestIgnoredIsStillJSON(t *testing.T) {
	t.Parallel()
	for _, sel := range []*canon.Selection{
		mustSelect(t, nil, []string{"/a", "/0"}),
		mustSelect(t, []string{"/b", "/1"}, nil),
		mustSelect(t, nil, []string{""}),
	} {
		for _, doc := range []string{
			`{"b":1,"a":nul}`, `{"b":1,"a":{"x":1,"x":2}}`, `{"a":1,"a":2,"b":3}`, `{"a":1,"b":2,"\u0061":3}`,
			`["\ud800",1]`, `[01,1]`, `[[1,]]`, `{"a":"` + "\xff" + `"}`,
			`{"a":` + strings.Repeat("[", canon.MaxDepth) + strings.Repeat("]", canon.MaxDepth) + `}`,
		} {
			if got, err := canon.Append(nil, []byte(doc), sel); !errors.Is(err, canon.ErrNotJSON) {
				t.Errorf("Append(%.50q) = %q, %v", doc, got, err)
			}
		}
	}
}

func TestSelectRefusesMalformedPointers(t *testing.T) {
	t.Parallel()
	for pointer, want := range map[string]string{
		"a":       "does not begin with a slash",
		"#/a":     "does not begin with a slash",
		"/a~":     "a ~ without 0 or 1",
		"/a~2":    "a ~ without 0 or 1",
		"/~~0/b":  "a ~ without 0 or 1",
		"/a/\xff": "not valid UTF-8",
	} {
		for _, sides := range [][2][]string{{{"/x", pointer}, nil}, {nil, {"/x", pointer}}} {
			sel, err := canon.Select(sides[0], sides[1])
			if err == nil || !strings.Contains(err.Error(), want) || sel != nil {
				t.Errorf("Select(%q, %q) = %v, %v; want an error: %s", sides[0], sides[1], sel, err, want)
			}
		}
	}
}
