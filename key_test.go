package onceward_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

const someUUID = "8e03978e-40d5-43dd-bc93-6894a57f9324"

func TestAcceptedKeys(t *testing.T) {
	t.Parallel()
	visible := "!#$%&'()*+-./0:<=>?@A[]^_`a{|}~"
	tests := []struct {
		name, line, key string
		strict          bool
	}{
		{"bare", "k", "k", false},
		{"quoted", `"k"`, "k", true},
		{"bare UUID that starts with a digit", someUUID, someUUID, false},
		{"quoted UUID", `"` + someUUID + `"`, someUUID, true},
		{"all visible ASCII that needs no quotes", visible, visible, false},
		{"spaces around a bare key", "  k  ", "k", false},
		{"spaces around a quoted key", `  "k"  `, "k", true},
		{"a space inside quotes", `" k "`, " k ", true},
		{"an escaped quote and backslash", `"a\"b\\c"`, `a"b\c`, true},
		{"a comma inside quotes", `"a,b"`, "a,b", true},
		{"parameters are ignored", `"k";a;b=1;c="x"`, "k", true},
		{"a parameter after a space", `"k"; a=1`, "k", true},
		{"one character", "1", "1", false},
		{"255 characters", strings.Repeat("k", 255), strings.Repeat("k", 255), false},
		{"255 characters in quotes", `"` + strings.Repeat("k", 255) + `"`, strings.Repeat("k", 255), true},
		{"255 characters after decoding", `"` + strings.Repeat(`\"`, 255) + `"`, strings.Repeat(`"`, 255), true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			key, err := onceward.ParseKey(test.line, onceward.KeyRules{})
			if err != nil || key != test.key {
				t.Errorf("H2: lenient: ParseKey(%q) = %q, %v; want %q", test.line, key, err, test.key)
			}
			key, err = onceward.ParseKey(test.line, onceward.KeyRules{Syntax: onceward.SyntaxStrict})
			if test.strict && (err != nil || key != test.key) {
				t.Errorf("H2: strict: ParseKey(%q) = %q, %v; want %q", test.line, key, err, test.key)
			}
			if !test.strict && !errors.Is(err, onceward.ErrBadKey) {
				t.Errorf("H2: strict: ParseKey(%q) = %q, %v; want ErrBadKey", test.line, key, err)
			}
		})
	}
}

// refusedKeys are the lines of H4 that are wrong under both syntaxes.
var refusedKeys = map[string][]string{
	"an empty value":                 {""},
	"only spaces":                    {"   "},
	"an empty string":                {`""`},
	"two header lines":               {"a", "b"},
	"two equal header lines":         {`"k"`, `"k"`},
	"a list":                         {"a,b"},
	"a list of strings":              {`"a", "b"`},
	"a tab":                          {"a\tb"},
	"a tab inside quotes":            {"\"a\tb\""},
	"a tab in front":                 {"\tk"},
	"a control character":            {"a\x01b"},
	"a control character in quotes":  {"\"a\x00b\""},
	"DEL":                            {"a\x7f"},
	"non-ASCII":                      {"clé"},
	"non-ASCII in quotes":            {`"clé"`},
	"a byte that is not UTF-8":       {"a\xff"},
	"an unterminated string":         {`"abc`},
	"a lone quote":                   {`"`},
	"a quote at the end":             {`abc"`},
	"a bad escape":                   {`"a\nb"`},
	"an escape at the end":           {`"a\"`},
	"text behind the string":         {`"a"b`},
	"a parameter without a name":     {`"a";`},
	"a parameter that is cut off":    {`"a";x="`},
	"a space in a bare key":          {"a b"},
	"a semicolon in a bare key":      {"a;b=1"},
	"a backslash in a bare key":      {`a\b`},
	"256 characters":                 {strings.Repeat("k", 256)},
	"256 characters inside quotes":   {`"` + strings.Repeat("k", 256) + `"`},
	"256 characters after unescaped": {`"` + strings.Repeat(`\\`, 256) + `"`},
}

func TestRefusedKeysExecuteNothing(t *testing.T) {
	t.Parallel()
	for name, lines := range refusedKeys {
		for _, syntax := range []onceward.KeySyntax{onceward.SyntaxLenient, onceward.SyntaxStrict} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				store, handler := memory.New(), new(counted)
				guard := newGuard(t, store, func(c *onceward.Config) { c.Keys.Syntax = syntax })
				h := guard.Handler(handler, reserved)
				a := post(h, "", `{}`, withHeader("Idempotency-Key", lines...))
				if p := a.wantProblem(t, "H4", http.StatusBadRequest, "invalid-key"); p.Retryable {
					t.Error("A1: a bad key is not better the second time, but the problem says retryable")
				} else if strings.Contains(strings.ToLower(p.Detail), strings.ToLower(p.Title)) {
					t.Errorf("H4: the detail %q says the title %q again", p.Detail, p.Title)
				}
				handler.wantRuns(t, "H4", 0)
				wantNothingStored(t, "H4", store)
			})
		}
	}
}

func TestStrictRefusesEverythingButStrings(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"token", "42", "4.2", ":aGk=:", "?1", "@1659578233", `%"display"`, `("a")`} {
		_, err := onceward.ParseKey(line, onceward.KeyRules{Syntax: onceward.SyntaxStrict})
		if !errors.Is(err, onceward.ErrBadKey) {
			t.Errorf("H2: strict: ParseKey(%q): %v, want ErrBadKey", line, err)
		}
	}
}

func TestKeyLengthsAreConfigurable(t *testing.T) {
	t.Parallel()
	rules := onceward.KeyRules{MinLength: 16, MaxLength: 20}
	for line, ok := range map[string]bool{
		strings.Repeat("k", 15): false, strings.Repeat("k", 16): true, `"` + strings.Repeat("k", 15) + `"`: false,
		strings.Repeat("k", 20): true, strings.Repeat("k", 21): false,
	} {
		if _, err := onceward.ParseKey(line, rules); (err == nil) != ok {
			t.Errorf("H3: 16 to 20 characters: ParseKey(%q): %v, want accepted %t", line, err, ok)
		}
	}
	for _, bad := range []onceward.KeyRules{
		{MinLength: -1}, {MaxLength: 256}, {MinLength: 20, MaxLength: 10}, {Headers: []string{""}},
	} {
		if _, err := onceward.New(memory.New(), onceward.Config{Secret: testSecret, Keys: bad}); err == nil {
			t.Errorf("H3: rules %+v were accepted", bad)
		}
	}
}

func TestQuotedAndBareAreTheSameKey(t *testing.T) {
	t.Parallel()
	handler := new(counted)
	h := newGuard(t, memory.New()).Handler(handler, reserved)
	first := post(h, "k", `{}`)
	for _, line := range []string{`"k"`, `"k";v=2`, "k", " k "} {
		again := post(h, line, `{}`)
		again.want(t, "H2", http.StatusCreated, true)
		again.wantSame(t, "H2", first)
	}
	post(h, "K", `{}`).want(t, "H3: keys are compared byte for byte", http.StatusCreated, false)
	handler.wantRuns(t, "H2, H3", 2)
}

func TestKeyHeaderAliases(t *testing.T) {
	t.Parallel()
	handler := new(counted)
	guard := newGuard(t, memory.New(), func(c *onceward.Config) {
		c.Keys.Headers = []string{"idempotency-key", "x-REQUEST-id"}
	})
	server := startServer(t, guard.Handler(handler, reserved))
	// The names go over the wire as they are written here.
	raw := func(name, value string) edit { return func(r *http.Request) { r.Header[name] = []string{value} } }

	send(t, server, "", `{}`, raw("x-request-id", "k")).want(t, "H1", http.StatusCreated, false)
	send(t, server, "", `{}`, raw("IDEMPOTENCY-KEY", "k")).want(t, "H1", http.StatusCreated, true)
	send(t, server, "", `{}`, raw("X-Request-ID", "other"), raw("Idempotency-Key", "k")).
		want(t, "H1: the first of the list counts", http.StatusCreated, true)
	send(t, server, "", `{}`, raw("X-Request-ID", "k"), raw("Idempotency-Key", "a,b")).
		wantProblem(t, "H1: a bad key is not made good by an alias", http.StatusBadRequest, "invalid-key")
	handler.wantRuns(t, "H1", 1)
}

func TestMissingKey(t *testing.T) {
	t.Parallel()
	store, handler, events := memory.New(), new(counted), new(journal)
	guard := newGuard(t, store, observedBy(events))
	required := guard.Handler(handler, reserved)
	post(required, "", `{}`).wantProblem(t, "H5", http.StatusBadRequest, "missing-key")
	handler.wantRuns(t, "H5", 0)

	optional := guard.Handler(handler, reserved, onceward.KeyOptional())
	for range 2 {
		post(optional, "", `{}`).want(t, "H5: optional", http.StatusCreated, false)
	}
	handler.wantRuns(t, "H5: optional", 2)
	wantNothingStored(t, "H5: optional", store)
	if got := len(observed[onceward.UnprotectedEvent](events)); got != 2 {
		t.Errorf("H5: %d unprotected requests were counted, want 2", got)
	}
	post(optional, "a,b", `{}`).wantProblem(t, "H4: optional does not mean any key", http.StatusBadRequest, "invalid-key")
	post(optional, "k", `{}`).want(t, "H5: optional with a key", http.StatusCreated, false)
	post(optional, "k", `{}`).want(t, "H5: optional with a key", http.StatusCreated, true)
	handler.wantRuns(t, "H5", 3)
}

func TestOtherMethodsPassStraightThrough(t *testing.T) {
	t.Parallel()
	for _, method := range []string{
		http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete,
	} {
		for name, key := range map[string]string{"with a key": "k", "without a key": "", "with a bad key": "a,b"} {
			t.Run(method+" "+name, func(t *testing.T) {
				store := memory.New()
				handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
					if onceward.FromContext(r.Context()) != nil {
						t.Error("H6: the request runs inside an operation")
					}
					w.WriteHeader(http.StatusTeapot)
				}}
				h := newGuard(t, store).Handler(handler, reserved)
				for range 2 {
					// Without credentials: the scope is not even asked for.
					a := serve(h, newRequest(method, "/payments", key, "", func(r *http.Request) { r.Header.Del("Authorization") }))
					a.want(t, "H6", http.StatusTeapot, false)
				}
				handler.wantRuns(t, "H6", 2)
				wantNothingStored(t, "H6", store)
			})
		}
	}
}

func TestMethodsByChoice(t *testing.T) {
	t.Parallel()
	handler := new(counted)
	h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.Methods(http.MethodPut))
	for range 2 {
		serve(h, newRequest(http.MethodPut, "/payments", "k", `{}`))
		serve(h, newRequest(http.MethodPost, "/payments", "k", `{}`))
	}
	handler.wantRuns(t, "H6: PUT is protected, POST is not", 3)
}

func TestPersonalData(t *testing.T) {
	t.Parallel()
	rules := onceward.KeyRules{RefusePersonalData: true}
	for _, key := range []string{
		"alice@example.com", "order-7-bob@mail.example.org", "4111111111111111", "4111-1111-1111-1111", `"4111 1111 1111 1111"`,
		"+491701234567", "+1(415)555-2671", "0170/1234567", "378282246310005",
	} {
		if _, err := onceward.ParseKey(key, rules); !errors.Is(err, onceward.ErrPersonalKey) {
			t.Errorf("H7: ParseKey(%q): %v, want ErrPersonalKey", key, err)
		}
		if _, err := onceward.ParseKey(key, onceward.KeyRules{}); err != nil {
			t.Errorf("H7: the guard is off, but ParseKey(%q): %v", key, err)
		}
	}
	for _, key := range []string{
		someUUID, "12345678-1234-1234-1234-123456789012", "order-12345", "4111111111111112", "20260131120000",
		"user@host", "@", "a@.", "1234567", strings.Repeat("1", 40),
	} {
		if _, err := onceward.ParseKey(key, rules); err != nil {
			t.Errorf("H7: ParseKey(%q): %v, want it accepted", key, err)
		}
	}
	handler := new(counted)
	guard := newGuard(t, memory.New(), func(c *onceward.Config) { c.Keys = rules })
	a := post(guard.Handler(handler, reserved), "alice@example.com", `{}`)
	a.wantProblem(t, "H7", http.StatusBadRequest, "personal-data-key")
	if strings.Contains(a.body, "alice@") {
		t.Errorf("H7: the answer repeats the personal data: %s", a.body)
	}
	handler.wantRuns(t, "H7", 0)
}

func FuzzParseKey(f *testing.F) {
	for _, lines := range refusedKeys {
		f.Add(lines[0])
	}
	for _, line := range []string{
		"k", `"k"`, `"a\"b\\c"`, `"k";a;b=1`, someUUID, `"k"; a="\""`, "  k", "4111111111111111",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		strictKey, strictErr := onceward.ParseKey(line, onceward.KeyRules{Syntax: onceward.SyntaxStrict})
		key, err := onceward.ParseKey(line, onceward.KeyRules{})
		if strictErr == nil && (err != nil || key != strictKey) {
			t.Fatalf("H2: strict gives %q for %q, lenient %q, %v", strictKey, line, key, err)
		}
		if err != nil {
			if !errors.Is(err, onceward.ErrBadKey) || key != "" {
				t.Fatalf("H4: ParseKey(%q) = %q, %v; want no key and ErrBadKey", line, key, err)
			}
			return
		}
		if len(key) < 1 || len(key) > 255 {
			t.Fatalf("H3: %q was accepted as a key of %d characters", line, len(key))
		}
		for i := range len(key) {
			if key[i] < ' ' || key[i] > '~' {
				t.Fatalf("H4: %q was accepted as %q, with the byte 0x%02x", line, key, key[i])
			}
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		for _, syntax := range []onceward.KeySyntax{onceward.SyntaxLenient, onceward.SyntaxStrict} {
			if again, err := onceward.ParseKey(quoted, onceward.KeyRules{Syntax: syntax}); err != nil || again != key {
				t.Fatalf("H2: %q is the key %q, but quoted it is %q, %v", line, key, again, err)
			}
		}
	})
}
