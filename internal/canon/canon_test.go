package canon_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/canon"
)

// canonical returns the canonical form of doc, which must be JSON.
func canonical(t testing.TB, doc string, sel *canon.Selection) string {
	t.Helper()
	out, err := canon.Append(nil, []byte(doc), sel)
	if err != nil {
		t.Fatalf("Append(%.200q): %v", doc, err)
	}
	return string(out)
}

func TestAppend(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, doc, want string }{
		{"literals", " [ true , false , null ] ", `[true,false,null]`},
		{"scalar document", " \t\r\n\"x\" ", `"x"`},
		{"empty containers", `{ "b" : { } , "a" : [ ] }`, `{"a":[],"b":{}}`},
		{"members in order", `{"a":1,"b":2}`, `{"a":1,"b":2}`},
		{"members out of order", `{"b":2,"a":1}`, `{"a":1,"b":2}`},
		{"name that begins another", `{"ab":1,"a":2,"":3}`, `{"":3,"a":2,"ab":1}`},
		{"long names with one beginning", `{"long name 2":1,"long name 10":2}`, `{"long name 10":2,"long name 2":1}`},
		{"inner object only", `{"a":{"d":1,"c":2},"b":0}`, `{"a":{"c":2,"d":1},"b":0}`},
		{"outer object only", `{"b":{"c":1,"d":2},"a":0}`, `{"a":0,"b":{"c":1,"d":2}}`},
		{
			"objects at all depths",
			`{"z":[{"b":{"y":1,"x":[{"n":1,"m":2}]},"a":0},{"d":1,"c":2}],"a":{"q":1,"p":2}}`,
			`{"a":{"p":2,"q":1},"z":[{"a":0,"b":{"x":[{"m":2,"n":1}],"y":1}},{"c":2,"d":1}]}`,
		},
		{"escaped name", `{"\u0062":1,"a":2}`, `{"a":2,"b":1}`},
		{"names with escapes", `{"a\"":1,"a\n":2,"a!":3,"a\u0000":4}`, `{"a\u0000":4,"a\n":2,"a!":3,"a\"":1}`},
		{"NUL and the end of a name", `{"a\u0000":1,"a":2}`, `{"a":2,"a\u0000":1}`},
		{"escapes", `"\b\f\n\r\t\"\\\/\u0041"`, `"\b\f\n\r\t\"\\/A"`},
		{"escapes that could be shorter", `"\u0008\u000c\u000A\u000d\u0009\u0022\u005C"`, `"\b\f\n\r\t\"\\"`},
		{"other controls", `"\u0000\u000B\u001F\u007f"`, `"\u0000\u000b\u001f` + "\x7f\""},
		{"not for HTML", `"\u003c&>\u2028"`, "\"<&>\u2028\""},
		{"surrogate pair", `"\ud83d\ude00"`, `"😀"`},
		{"replacement character", `"\ufffd"`, "\"\ufffd\""},
		{"byte order mark within", `"\ufeff"`, "\"\ufeff\""},
		{"text of many lengths", `["é","aé","1234567é","12345678é","ééé a"]`, `["é","aé","1234567é","12345678é","ééé a"]`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := canonical(t, test.doc, nil); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if got := canonical(t, test.want, nil); got != test.want {
				t.Errorf("not idempotent: got %s\nwant %s", got, test.want)
			}
		})
	}
}

// After the examples of RFC 8785 and the data of its reference implementation. The
// one number there which a double rounds stays exact here.
func TestRFC8785(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, doc, want string }{
		{
			"order of names",
			`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",` +
				`"\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`,
			`{"\r":"Carriage Return","1":"One","` + "\u0080" + `":"Control","ö":"Latin Small Letter O With Diaeresis",` +
				`"€":"Euro Sign","😀":"Emoji: Grinning Face","` + "\ufb33" + `":"Hebrew Letter Dalet With Dagesh"}`,
		},
		{"arrays", `[ 56, { "d": true, "10": null, "1": [ ] } ]`, `[56,{"1":[],"10":null,"d":true}]`},
		{
			"french",
			`{"peach":"This sorting order","péché":"is wrong according to French",` +
				`"pêche":"but canonicalization MUST","sin":"ignore locale"}`,
			`{"peach":"This sorting order","péché":"is wrong according to French",` +
				`"pêche":"but canonicalization MUST","sin":"ignore locale"}`,
		},
		{
			"structures",
			`{ "1": {"f": {"f": "hi","F": 5} ,"\n": 56.0}, "10": { }, "": "empty", "a": { }, "111": [ { } ], "A": { } }`,
			`{"":"empty","1":{"\n":56,"f":{"F":5,"f":"hi"}},"10":{},"111":[{}],"A":{},"a":{}}`,
		},
		{"unicode", `{"Unnormalized Unicode":"A\u030a"}`, "{\"Unnormalized Unicode\":\"A\u030a\"}"},
		{
			"values",
			`{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],` +
				`"string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}`,
			`{"literals":[null,true,false],"numbers":[333333333.33333329,1e+30,4.5,0.002,1e-27],` +
				`"string":"€$\u000f\nA'B\"\\\\\"/"}`,
		},
		{
			"weird",
			`{"\u20ac":"Euro Sign","\r":"Carriage Return","\u000a":"Newline","1":"One","\u0080":"Control\u007f",` +
				`"\ud83d\ude02":"Smiley","\u00f6":"ö","\ufb33":"Dalet","</script>":"Browser Challenge"}`,
			`{"\n":"Newline","\r":"Carriage Return","1":"One","</script>":"Browser Challenge","` +
				"\u0080\":\"Control\x7f\"" + `,"ö":"ö","€":"Euro Sign","😂":"Smiley","` + "\ufb33" + `":"Dalet"}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := canonical(t, test.doc, nil); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestNotJSON(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", canon.MaxDepth+1) + strings.Repeat("]", canon.MaxDepth+1)
	for name, docs := range map[string][]string{
		"nothing":            {"", " \n"},
		"byte order mark":    {"\ufeff1"},
		"trailing data":      {"1 2", "{}{}", "[]]", `"a"b`, "nullnull", "1,", "1\x00"},
		"bad literal":        {"nul", "nulL", "True", "t", "NaN", "Infinity", "undefined"},
		"bad number":         {"01", "-01", "-", "+1", ".5", "1.", "1.e3", "1e", "1e+", "0x1", "-a", "1.0.0", "00", "1_0", "--1"},
		"bad array":          {"[", "[1", "[1,", "[1,]", "[,1]", "[,]", "[1 2]", "[1}", "[1;2]"},
		"bad object":         {"{", "{1:2}", `{"a"}`, `{"a":}`, `{"a":1,}`, `{,"a":1}`, `{"a" 1}`, `{"a":1]`, `{"a":1`, `{a:1}`, `{'a':1}`, `{"a`},
		"bad string":         {`"`, `"a`, `'a'`, `"\`, `"\"`, `"\a"`, `"\u"`, `"\u12"`, `"\u123g"`, `"\U0041"`, `"\u{41}"`, "\"12345678\\"},
		"control character":  {"\"\n\"", "\"\x00\"", "\"abcdefgh\x1f\"", "{\"\t\":1}"},
		"other white space":  {"\v1", "\f1", "\u00a01", "[1,\u20282]"},
		"comment":            {"1//", "/**/1"},
		"duplicate name":     {`{"a":1,"a":1}`, `{"a":1,"\u0061":2}`, `{"a":1,"b":2,"a":3}`, `{"é":1,"\u00e9":2}`, `{"":1,"":2}`, `[{"x":{"\n":1,"\u000a":2}}]`, `{"long name 1":1,"b":2,"long name 1":3}`},
		"lone surrogate":     {`"\ud800"`, `"\udc00"`, `"\ud800\ud800"`, `"\ud800a"`, `"\ud800\n"`, `"\ud800\u0041"`, `"\udc00\ud800"`, `{"\ud800":1}`, `"\ud83d\ude0"`},
		"invalid UTF-8":      {"\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xe2\x82\"", "{\"\x80\":1}", "\"\xf4\x90\x80\x80\"", "\"\xe2\x82"},
		"too deep":           {deep, strings.ReplaceAll(strings.ReplaceAll(deep, "[", `{"a":[`), "]", "]}")},
		"within many others": {`{"b":[1,{"c":[true,{"d":"x","d":"y"}]}],"a":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, doc := range docs {
				dst := []byte("before")
				got, err := canon.Append(dst, []byte(doc), nil)
				if !errors.Is(err, canon.ErrNotJSON) {
					t.Errorf("Append(%.50q) = %.50q, %v; want ErrNotJSON", doc, got, err)
				}
				if string(got) != "before" {
					t.Errorf("Append(%.50q) changed dst to %.50q", doc, got)
				}
			}
		})
	}
}

func TestErrorSaysWhere(t *testing.T) {
	t.Parallel()
	_, err := canon.Append(nil, []byte(`{"a":1,"a":2}  `), nil)
	const want = "not canonicalisable JSON: duplicate member name in the object that ends at byte 13"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestMaxDepth(t *testing.T) {
	t.Parallel()
	doc := strings.Repeat("[", canon.MaxDepth) + strings.Repeat("]", canon.MaxDepth)
	if got := canonical(t, doc, nil); got != doc {
		t.Errorf("got %s", got)
	}
	siblings := "[" + strings.Repeat("[],{},", canon.MaxDepth) + "[]]"
	if got := canonical(t, siblings, nil); got != siblings {
		t.Errorf("siblings count as depth: got %s", got)
	}
}

func TestAppendKeepsDst(t *testing.T) {
	t.Parallel()
	src := []byte(`{"b":1,"a":{"d":2,"c":3}}`)
	original := bytes.Clone(src)
	got, err := canon.Append([]byte("before "), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := `before {"a":{"c":3,"d":2},"b":1}`; string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !bytes.Equal(src, original) {
		t.Errorf("src became %s", src)
	}
}

func TestAppendConcurrently(t *testing.T) {
	t.Parallel()
	for name, doc := range documents() {
		want := canonical(t, string(doc), nil)
		for range 4 {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for range 50 {
					if got := canonical(t, string(doc), nil); got != want {
						t.Fatalf("got %s\nwant %s", got, want)
					}
				}
			})
		}
	}
}

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
