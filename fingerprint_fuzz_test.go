package onceward

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/canon"
)

// taped is a hash that keeps what is written to it.
type taped struct{ bytes.Buffer }

func (t *taped) Sum(b []byte) []byte { return b }
func (t *taped) Size() int           { return 0 }
func (t *taped) BlockSize() int      { return 1 }

// encoding is what is hashed of a request.
func encoding(t *testing.T, r *http.Request, body []byte) []byte {
	t.Helper()
	tape := new(taped)
	e := &encoder{hash: tape, message: []byte{kindRaw}}
	if err := e.request(r, "pay", body, new(fingerprintOptions)); err != nil {
		t.Fatal(err)
	}
	return tape.Bytes()
}

// meaning is what a request means, in a form that does not come from the encoder.
type meaning struct {
	target, query string
	media         [2]string // the media type, and its parameters as they are sorted
	json          string
	form          url.Values
	parts         []bodyPart
	raw           string
}

type bodyPart struct {
	header  map[string][]string
	content string
}

// meaningOf reads a request as a careful server would.
func meaningOf(r *http.Request, body []byte) meaning {
	m := meaning{target: r.URL.EscapedPath(), query: r.URL.Query().Encode(), raw: string(body)}
	kind, params := parseMediaType(r.Header.Get("Content-Type"))
	boundary := params["boundary"]
	m.media = [2]string{kind, sorted(params)}
	switch {
	case isJSON(kind):
		if form, err := canon.Append(nil, body, nil); err == nil {
			m.json, m.raw, m.media[1] = string(form), "", sorted(withoutUTF8(params))
		}
	case kind == "application/x-www-form-urlencoded":
		if form, err := url.ParseQuery(string(body)); err == nil {
			m.form, m.raw, m.media[1] = form, "", sorted(withoutUTF8(params))
		}
	case kind == "multipart/form-data" && boundary != "" && bytes.HasPrefix(body, []byte("--"+boundary)):
		parts, whole := partsOf(body, boundary)
		if delete(params, "boundary"); whole {
			m.parts, m.raw, m.media[1] = parts, "", sorted(params)
		}
	}
	return m
}

func partsOf(body []byte, boundary string) (parts []bodyPart, whole bool) {
	for reader := multipart.NewReader(bytes.NewReader(body), boundary); ; {
		next, err := reader.NextRawPart()
		if err == io.EOF {
			return parts, true
		}
		if err != nil {
			return nil, false
		}
		content, err := io.ReadAll(next)
		if err != nil {
			return nil, false
		}
		parts = append(parts, bodyPart{next.Header, string(content)})
	}
}

func sorted(params map[string]string) string {
	values := make(url.Values)
	for name, value := range params {
		values.Set(name, value)
	}
	return values.Encode()
}

// FuzzFingerprints: two requests have one encoding only if they mean the same, whatever kinds their bodies are of, and
// no encoding is the beginning of another one (F1).
func FuzzFingerprints(f *testing.F) {
	bodies := []struct{ media, body string }{
		{"application/json", `{"a":1}`},
		{"application/json", `{} {}`},
		{"application/json; v=2", `{"a":1}`},
		{"application/x-www-form-urlencoded", "a=1&b=2"},
		{"application/x-www-form-urlencoded", "a=%zz"},
		{"text/plain", "a"},
		{"", ""},
		{"multipart/form-data; boundary=b", "--b\r\nA: 1\r\n\r\nx\r\n--b--\r\n"},
		{"multipart/form-data; boundary=b", "--b\r\nA: 1\r\n\r\nx\r\n--b--\r\nbehind"},
	}
	for _, a := range bodies {
		for _, b := range bodies {
			f.Add("/?a=1", a.media, []byte(a.body), "/", b.media, []byte(b.body))
		}
	}
	f.Fuzz(func(t *testing.T, targetA, mediaA string, bodyA []byte, targetB, mediaB string, bodyB []byte) {
		a, b := fuzzed(t, targetA, mediaA), fuzzed(t, targetB, mediaB)
		encodedA, encodedB := encoding(t, a, bodyA), encoding(t, b, bodyB)
		if len(encodedA) != len(encodedB) && (bytes.HasPrefix(encodedA, encodedB) || bytes.HasPrefix(encodedB, encodedA)) {
			t.Errorf("F1: one encoding is the beginning of the other:\n%q\n%q", encodedA, encodedB)
		}
		meansA, meansB := meaningOf(a, bodyA), meaningOf(b, bodyB)
		if bytes.Equal(encodedA, encodedB) && !reflect.DeepEqual(meansA, meansB) {
			t.Errorf("F1: two requests that mean %+v and %+v have one encoding: %q", meansA, meansB, encodedA)
		}
	})
}

// fuzzed is a request with this target and media type.
func fuzzed(t *testing.T, target, media string) *http.Request {
	t.Helper()
	u, err := url.ParseRequestURI(target)
	if err != nil || !strings.HasPrefix(target, "/") || strings.HasPrefix(target, "//") {
		t.Skip("it is no target of a request")
	}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.URL, r.RequestURI = u, target
	r.Header.Set("Content-Type", media)
	return r
}
