package onceward_test

import (
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// variant is one way to write a request.
type variant struct {
	method, target, body, media string
}

func (v variant) request(key string, edits ...edit) *http.Request {
	method, target, media := v.method, v.target, v.media
	if method == "" {
		method = http.MethodPost
	}
	if target == "" {
		target = "/payments"
	}
	if media == "" {
		media = "application/json"
	}
	return newRequest(method, target, key, v.body, append([]edit{withHeader("Content-Type", media)}, edits...)...)
}

func multipartBody(boundary, value string) variant {
	body := "--B\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n" + value + "\r\n--B--\r\n"
	return variant{
		body: strings.ReplaceAll(body, "--B", "--"+boundary), media: "multipart/form-data; boundary=" + boundary,
	}
}

// around is a body with more before and after its parts.
func around(front string, v variant, behind string) variant {
	v.body = front + v.body + behind
	return v
}

func form(body string) variant {
	return variant{body: body, media: formType}
}

func jsonBody(body string) variant { return variant{body: body} }

// lookalike is a body that is no form, and a form whose encoding would be the same if the kind of a body came last in it:
// the parameters of the media type and the body would be taken for names and values.
func lookalike() (raw, like variant) {
	const params = "x/x; a=b" // 8 names, the first of which has as many bytes as the number of an x
	const size = 142
	head := params[1:] + "\x00" + string(binary.AppendUvarint(nil, size))
	first := head + strings.Repeat(";", 'x'-len(head)) // no form has a semicolon
	names := url.Values{first: {""}}
	body := first[len(head):] + "\x01\x00" // one empty value
	for _, name := range "1234567" {
		names.Set(string(name), "")
		body += "\x01" + string(name) + "\x01\x00"
	}
	body += "\x02\x00" // the kind of a form, and nothing after it
	if len(body) != size {
		panic(len(body))
	}
	return variant{body: body, media: formType + "; a=b"}, form(names.Encode())
}

func TestWhatARequestMeans(t *testing.T) {
	t.Parallel()
	raw, like := lookalike()
	tests := []struct {
		name          string
		first, second variant
		same          bool
	}{
		{"F1: the same", variant{body: `{"a":1}`}, variant{body: `{"a":1}`}, true},
		{"F1: another method", variant{body: `{}`}, variant{method: http.MethodPatch, body: `{}`}, false},
		{"F1: another route", variant{target: "/payments"}, variant{target: "/refunds"}, false},
		{"F1: another path value", variant{target: "/accounts/1/payments"}, variant{target: "/accounts/2/payments"}, false},
		{"F1: an escaped slash is not a slash", variant{target: "/any/a%2Fb"}, variant{target: "/any/a/b"}, false},
		{"F1: query in another order", variant{target: "/payments?a=1&b=2"}, variant{target: "/payments?b=2&a=1"}, true},
		{"F1: query with another value", variant{target: "/payments?a=1"}, variant{target: "/payments?a=2"}, false},
		{"F1: query against none", variant{target: "/payments?a"}, variant{target: "/payments"}, false},
		{"F1: a lone question mark", variant{target: "/payments?"}, variant{target: "/payments"}, true},
		{"F1: repeated values in order", variant{target: "/payments?a=1&a=2"}, variant{target: "/payments?a=2&a=1"}, false},
		{"F1: repeated values, others between", variant{target: "/payments?a=1&b=3&a=2"}, variant{target: "/payments?a=1&a=2&b=3"}, true},
		{"F1: query written otherwise", variant{target: "/payments?a=%41+b"}, variant{target: "/payments?a=A%20b"}, true},
		{"F1: where a value ends", variant{target: "/payments?a=bc&d"}, variant{target: "/payments?ab=c&d"}, false},
		{"F1: a query that cannot be parsed", variant{target: "/payments?a=%zz"}, variant{target: "/payments?a=%zz"}, true},
		{"F1: another query that cannot be parsed", variant{target: "/payments?a=%zz"}, variant{target: "/payments?a=%zy"}, false},
		{"F1: what is query is not body", variant{target: "/payments?a=1", body: ""}, variant{body: "a=1"}, false},

		{"F1: media type with a charset", variant{body: `{}`}, variant{body: `{}`, media: "application/json; charset=utf-8"}, true},
		{"F1: media type in upper case", variant{body: `{}`}, variant{body: `{}`, media: "Application/JSON;charset=UTF-8"}, true},
		{"F1: another media type", variant{body: `{}`}, variant{body: `{}`, media: "application/merge-patch+json"}, false},
		{"F1: text is not JSON", variant{body: `{}`}, variant{body: `{}`, media: "text/plain"}, false},
		{"F1: text in another charset", variant{body: "a", media: "text/plain; charset=utf-8"}, variant{body: "a", media: "text/plain; charset=latin1"}, false},

		{"F1: a version of JSON", variant{body: `{}`, media: "application/json; v=1"}, variant{body: `{}`, media: "application/json; v=2"}, false},
		{"F1: parameters in another order", variant{body: `{}`, media: "application/json; v=1;w=2"}, variant{body: `{}`, media: "application/json;w=2; V=1"}, true},
		{"F1: JSON in another charset", variant{body: `{}`}, variant{body: `{}`, media: "application/json; charset=latin1"}, false},
		{"F1: a form with a charset", form("a=1"), variant{body: "a=1", media: formType + "; charset=UTF-8"}, true},
		{"F1: a form with a parameter", form("a=1"), variant{body: "a=1", media: formType + "; v=1"}, false},
		{"F1: multipart with a parameter", multipartBody("one", "7"), variant{body: multipartBody("one", "7").body, media: multipartBody("one", "7").media + "; v=1"}, false},
		{"F1: raw bytes that look like a form", raw, like, false},

		{"F2: white space and order", jsonBody(`{"a":1,"b":[1,2]}`), jsonBody(" {\n\"b\": [1, 2],\t\"a\": 1 } "), true},
		{"F2: order of an array", jsonBody(`[1,2]`), jsonBody(`[2,1]`), false},
		{"F2: string escapes", jsonBody(`{"a":"é\/"}`), jsonBody(`{"a":"\u00e9/"}`), true},
		{"F2: escaped member names", jsonBody(`{"a":1}`), jsonBody(`{"\u0061":1}`), true},
		{"F2: another value", jsonBody(`{"amount":10}`), jsonBody(`{"amount":100}`), false},
		{"F2: null is not absent", jsonBody(`{"a":null}`), jsonBody(`{}`), false},
		{"F2: a number is not a string", jsonBody(`{"a":1}`), jsonBody(`{"a":"1"}`), false},
		{"F2: 1.0 is 1", jsonBody(`1.0`), jsonBody(`1`), true},
		{"F2: 1e0 is 1", jsonBody(`1e0`), jsonBody(`1`), true},
		{"F2: 100 is 1E2", jsonBody(`100`), jsonBody(`1E+2`), true},
		{"F2: numbers past 2^53", jsonBody(`9007199254740993`), jsonBody(`9007199254740992`), false},
		{"F2: numbers past a float64", jsonBody(`1e400`), jsonBody(`1e401`), false},
		{"F2: 0.1 and its nearest float64", jsonBody(`0.1`), jsonBody(`0.1000000000000000055511151231257827`), false},
		{"F2: Unicode is not normalised", jsonBody(`"é"`), jsonBody("\"e\u0301\""), false},
		{"F2: duplicate names are raw", jsonBody(`{"a":1,"a":2}`), jsonBody(`{"a":2}`), false},
		{"F2: raw bytes keep white space", jsonBody(`{"a":1,"a":2}`), jsonBody(`{"a":1, "a":2}`), false},
		{"F2: raw bytes equal themselves", jsonBody(`{"a":1,"a":2}`), jsonBody(`{"a":1,"a":2}`), true},
		{"F2: a lone surrogate is raw", jsonBody(`"\ud800"`), jsonBody(` "\ud800"`), false},
		{"F2: trailing data is raw", jsonBody(`{} {}`), jsonBody(`{}{}`), false},
		{"F2: an empty body is no object", jsonBody(``), jsonBody(`{}`), false},
		{"F2: +json is JSON", variant{body: `{"a":1.0}`, media: "application/x+json"}, variant{body: `{"a":1}`, media: "application/x+json"}, true},

		{"F3: form in another order", form("a=1&b=2"), form("b=2&a=1"), true},
		{"F3: repeated names in order", form("a=1&a=2"), form("a=2&a=1"), false},
		{"F3: form with another value", form("a=1"), form("a=2"), false},
		{"F3: a form that is none is raw", form("a=%zz&b=1"), form("b=1&a=%zz"), false},
		{"F3: another boundary", multipartBody("one", "7"), multipartBody("two", "7"), true},
		{"F3: another part", multipartBody("one", "7"), multipartBody("one", "8"), false},
		{"F3: in front of the parts", multipartBody("one", "7"), around("in front\r\n", multipartBody("one", "7"), ""), false},
		{"F3: what looks like a first part", multipartBody("one", "7"), around("--one more\r\n", multipartBody("one", "7"), ""), false},
		{"F3: behind the parts", multipartBody("one", "7"), around("", multipartBody("one", "7"), "behind"), false},
		{"F3: behind the parts, ended again", multipartBody("one", "7"), around("", multipartBody("one", "7"), "behind\r\n--one--\r\n"), false},
		{"F3: no line end behind the parts", multipartBody("one", "7"), around("", multipartBody("one", "7"), "\r\n"), true},
		{"F3: multipart without a boundary is raw", variant{body: "a", media: "multipart/form-data"}, variant{body: "b", media: "multipart/form-data"}, false},
		{"F3: anything else is raw", variant{body: "a b", media: "text/plain"}, variant{body: "a  b", media: "text/plain"}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			rule, _, _ := strings.Cut(test.name, ":")
			handler := new(counted)
			guard := newGuard(t, memory.New())
			mux := http.NewServeMux()
			for _, pattern := range []string{
				"POST /payments", "PATCH /payments", "POST /refunds", "POST /accounts/{id}/payments", "POST /any/{rest...}",
			} {
				mux.Handle(pattern, guard.Handler(handler, reserved))
			}
			first := serve(mux, test.first.request("k"))
			first.want(t, rule, http.StatusCreated, false)
			second := serve(mux, test.second.request("k"))
			if test.same {
				second.want(t, rule, http.StatusCreated, true)
				second.wantSame(t, rule, first)
			} else {
				second.wantProblem(t, rule, http.StatusUnprocessableEntity, "mismatch")
			}
			again := serve(mux, test.first.request("k"))
			again.want(t, "S4: the original still replays", http.StatusCreated, true)
			handler.wantRuns(t, rule, 1)
		})
	}
}

// TestSecondLines: if a field has two lines it is ambiguous which one counts, so both do.
func TestSecondLines(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"Content-Type", "Content-Encoding"} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			handler := new(counted)
			h := newGuard(t, memory.New()).Handler(handler, reserved)
			lines := func(lines ...string) answer { return post(h, "k", `{"a":1}`, withHeader(field, lines...)) }
			lines("application/json", "text/plain").want(t, "F1", http.StatusCreated, false)
			lines("application/json", "text/plain").want(t, "F1: the same", http.StatusCreated, true)
			for _, other := range [][]string{
				{"application/json"}, {"application/json", "text/html"}, {"text/plain", "application/json"},
			} {
				lines(other...).wantProblem(t, "F1: other lines", http.StatusUnprocessableEntity, "mismatch")
			}
			handler.wantRuns(t, "F1", 1)
		})
	}
}

// TestFingerprintFuncOwnsItsBody: the function may change the body, which the handler gets as it came.
func TestFingerprintFuncOwnsItsBody(t *testing.T) {
	t.Parallel()
	var kept []byte
	keeping := onceward.FingerprintBy(func(_ *http.Request, body []byte) ([]byte, error) {
		kept = body
		copy(body, "!!!!!!!")
		return body, nil
	})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body)
	})
	h := newGuard(t, memory.New()).Handler(handler, reserved, keeping)
	if a := post(h, "k", `{"a":1}`); a.body != `{"a":1}` {
		t.Errorf("F4: the handler got %q, which is not what was sent", a.body)
	}
	post(h, "l", `{"b":2}`)
	if string(kept) != "!!!!!!!" {
		t.Errorf("F4: the body that a function kept is %q now", kept)
	}
}

func TestContentEncodingCounts(t *testing.T) {
	t.Parallel()
	handler := new(counted)
	h := newGuard(t, memory.New()).Handler(handler, reserved)
	post(h, "k", `{}`, withHeader("Content-Encoding", "gzip"))
	post(h, "k", `{}`).wantProblem(t, "F2: encoded bytes are not JSON", http.StatusUnprocessableEntity, "mismatch")
	post(h, "k", `{}`, withHeader("Content-Encoding", "gzip")).want(t, "F1", http.StatusCreated, true)
	handler.wantRuns(t, "F1", 1)
}

func TestARouteChoosesWhatCounts(t *testing.T) {
	t.Parallel()
	byOrder := onceward.FingerprintBy(func(r *http.Request, body []byte) ([]byte, error) {
		order, _, found := strings.Cut(string(body), ":")
		if !found {
			return nil, http.ErrNotSupported
		}
		return []byte(order), nil
	})
	version := func(v ...string) edit { return withHeader("Api-Version", v...) }
	type attempt struct {
		variant
		edits []edit
	}
	tests := []struct {
		name          string
		option        onceward.Option
		first, second attempt
		same          bool
	}{
		{
			"an ignored member", onceward.IgnoreJSON("/sent_at", "/meta/trace"),
			attempt{variant: jsonBody(`{"a":1,"sent_at":"noon","meta":{"trace":1,"x":2}}`)},
			attempt{variant: jsonBody(`{"a":1,"sent_at":"later","meta":{"x":2}}`)},
			true,
		},
		{
			"beside an ignored member", onceward.IgnoreJSON("/sent_at"),
			attempt{variant: jsonBody(`{"a":1,"sent_at":1}`)},
			attempt{variant: jsonBody(`{"a":2,"sent_at":1}`)},
			false,
		},
		{
			"what is not included", onceward.IncludeJSON("/amount", "/to"),
			attempt{variant: jsonBody(`{"amount":1,"to":"x","n":1}`)},
			attempt{variant: jsonBody(`{"amount":1.0,"to":"x","n":2}`)},
			true,
		},
		{
			"what is included", onceward.IncludeJSON("/amount", "/to"),
			attempt{variant: jsonBody(`{"amount":1,"to":"x"}`)},
			attempt{variant: jsonBody(`{"amount":1,"to":"y"}`)},
			false,
		},
		{
			"pointers do not apply to raw bytes", onceward.IgnoreJSON("/sent_at"),
			attempt{variant: jsonBody(`{"sent_at":1,"sent_at":1}`)},
			attempt{variant: jsonBody(`{"sent_at":2,"sent_at":1}`)},
			false,
		},
		{
			"another included header", onceward.IncludeHeaders("API-version"),
			attempt{edits: []edit{version("1")}},
			attempt{edits: []edit{version("2")}},
			false,
		},
		{
			"the same included header", onceward.IncludeHeaders("API-version"),
			attempt{edits: []edit{version("1")}},
			attempt{edits: []edit{version("1")}},
			true,
		},
		{
			"an included header that is missing", onceward.IncludeHeaders("API-version"),
			attempt{edits: []edit{version("")}},
			attempt{},
			false,
		},
		{
			"headers do not count by themselves", onceward.IncludeHeaders("Other"),
			attempt{edits: []edit{version("1")}},
			attempt{edits: []edit{version("2")}},
			true,
		},
		{
			"a function's same", byOrder,
			attempt{variant: variant{target: "/payments?try=1", body: "7:a"}},
			attempt{variant: variant{target: "/payments?try=2", body: "7:b", media: "text/plain"}},
			true,
		},
		{"a function's other", byOrder, attempt{variant: jsonBody("7:a")}, attempt{variant: jsonBody("8:a")}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			handler := new(counted)
			h := newGuard(t, memory.New()).Handler(handler, reserved, test.option)
			serve(h, test.first.request("k", test.first.edits...)).want(t, "F4", http.StatusCreated, false)
			second := serve(h, test.second.request("k", test.second.edits...))
			if test.same {
				second.want(t, "F4", http.StatusCreated, true)
			} else {
				second.wantProblem(t, "F4", http.StatusUnprocessableEntity, "mismatch")
			}
			handler.wantRuns(t, "F4", 1)
		})
	}
	t.Run("a function that fails", func(t *testing.T) {
		store, handler := memory.New(), new(counted)
		h := newGuard(t, store).Handler(handler, reserved, byOrder)
		post(h, "k", "no order").wantProblem(t, "F4", http.StatusBadRequest, "invalid-request")
		handler.wantRuns(t, "F4", 0)
		wantNothingStored(t, "F4", store)
	})
	t.Run("a pointer that is none", func(t *testing.T) {
		_, err := newGuard(t, memory.New()).Route(reserved, onceward.IgnoreJSON("sent_at"))
		if err == nil {
			t.Error("F4: the route was built with a JSON pointer without a slash")
		}
	})
}

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
			"5fe20443aeb5dcd311c5cfeab2de74ea34c3604da2a39d7aab89c2d1a85c18c8",
		},
		{
			"JSON, by name", jsonBody(`{"amount": 1.0, "to": "x"}`),
			[]onceward.Option{named},
			"f815eea9820d08ba458c4a7f68d5f455976892d9c7385b49de7814e0540053d3",
		},
		{
			"JSON, by name, PATCH",
			variant{method: http.MethodPatch, body: `{"amount": 1.0, "to": "x"}`},
			[]onceward.Option{named},
			"256662b1e3e57a77446410bb8005983f5b6b9392be729bf598f8855a809717fb",
		},
		{
			"a query",
			variant{target: "/a%2Fb?y=2&x=1&x=0"},
			nil,
			"f357bd362f82de1af3e976d84ff7bd17ab1b20abe95a95a7513a15d0ccdb7dab",
		},
		{
			"a form", form("b=2&a=1"), nil,
			"32b0d0df718f36ad49b05c564152af69bf1ec945ad408d75e216355278aeda41",
		},
		{
			"multipart", multipartBody("one", "7"), nil,
			"70a1fa5f0b281d7ca194b341e4d7d3cca9152b5f34ebe6801c934dbbf88668dc",
		},
		{
			"raw",
			variant{body: "a", media: "text/plain"},
			nil,
			"15d3c6293313da849d41d14650b45d53379c87e2b8c3bdb75ccd3d0474d4277a",
		},
	} {
		t.Run(vector.name, func(t *testing.T) {
			t.Parallel()
			store := memory.New()
			options := append([]onceward.Option{reserved, onceward.OperationName("POST")}, vector.options...)
			serve(newGuard(t, store).Handler(new(counted), options...), vector.request.request("k"))
			f := recordOf(t, store, "k").Fingerprint
			if got := hex.EncodeToString(f.Sum[:]); f.Rules != 1 || got != vector.sum {
				t.Errorf("F1: rules %d: %s, want rules 1: %s", f.Rules, got, vector.sum)
			}
		})
	}
	t.Run("a call", func(t *testing.T) {
		t.Parallel()
		s := memory.New()
		_, err := newGuard(t, s).Do(t.Context(), someCall, new(work).do, reserved)
		if err != nil {
			t.Fatal(err)
		}
		rec, err := s.Get(t.Context(), store.ID{Scope: someCall.Scope, Key: someCall.Key})
		if err != nil {
			t.Fatal(err)
		}
		const want = "e7afa350f363e10988719b4fbb7bd5cf9a0e792928ced935af71573d61d7bbe2"
		if got := hex.EncodeToString(rec.Fingerprint.Sum[:]); rec.Fingerprint.Rules != 1 || got != want {
			t.Errorf("F1: rules %d: %s, want rules 1: %s", rec.Fingerprint.Rules, got, want)
		}
	})
}
