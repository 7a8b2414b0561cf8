package httpcall_test

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httpcall"
)

// newCalls returns durable operations over a store that keeps none.
func newCalls(t *testing.T, profile *client.Profile) *httpcall.Calls {
	t.Helper()
	box, err := outbox.New(struct{ outbox.Store }{}, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	transport, err := client.New(client.Config{Profile: profile})
	if err != nil {
		t.Fatal(err)
	}
	calls, err := httpcall.New(httpcall.Config{Outbox: box, Topic: "payments", Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

func newRequest(t *testing.T, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://payments.test/payments", body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// TestNew: what cannot be right is refused.
func TestNew(t *testing.T) {
	t.Parallel()
	box, err := outbox.New(struct{ outbox.Store }{}, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for want, config := range map[string]httpcall.Config{
		"Config.Outbox is missing": {Topic: "payments"}, "Config.Topic is missing": {Outbox: box},
	} {
		if _, err := httpcall.New(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := httpcall.New(httpcall.Config{Outbox: box, Topic: "payments"}); err != nil {
		t.Errorf("without a transport: %v", err)
	}
}

// TestARequestIsEnqueuedTwice, as when a transaction is repeated: with its body both times.
func TestARequestIsEnqueuedTwice(t *testing.T) {
	t.Parallel()
	calls := newCalls(t, nil)
	for name, body := range map[string]io.Reader{
		"rewound": strings.NewReader("paper"), "read once": io.MultiReader(strings.NewReader("paper")),
	} {
		req := newRequest(t, body)
		req.Header.Set("Idempotency-Key", "k")
		for range 2 {
			m, err := calls.Message(req)
			o, openErr := httpcall.OperationOf(&outbox.Entry{Message: m})
			if err != nil || openErr != nil || string(o.Body) != "paper" || o.Header.Get("Idempotency-Key") != "" || m.Key != "k" {
				t.Errorf("%s: the operation is %+v: %v, %v", name, o, err, openErr)
			}
		}
	}
}

// TestWhatCannotBeEnqueued is refused before anything is written, while the caller can still act.
func TestWhatCannotBeEnqueued(t *testing.T) {
	t.Parallel()
	calls := newCalls(t, nil)
	for name, test := range map[string]struct {
		change func(r *http.Request)
		want   string
	}{
		"a token":    {func(r *http.Request) { r.Header.Set("Authorization", "Bearer secret") }, "Prepare"},
		"a cookie":   {func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "a", Value: "b"}) }, "Prepare"},
		"a password": {func(r *http.Request) { r.URL.User = url.UserPassword("a", "secret") }, "Prepare"},
		"a bad key":  {func(r *http.Request) { r.Header.Set("Idempotency-Key", "\xff") }, "key"},
		"no host":    {func(r *http.Request) { r.URL.Host = "" }, "URL"},
		"no URL":     {func(r *http.Request) { r.URL = nil }, "URL"},
		"another scheme": {func(r *http.Request) {
			r.URL = &url.URL{Scheme: "ftp", Host: "a", User: url.UserPassword("a", "secret")}
		}, "URL"},
		"a long body":         {func(r *http.Request) { r.Body = endless() }, "more than"},
		"a cut body":          {func(r *http.Request) { r.Body = io.NopCloser(iotest.ErrReader(errors.New("disk"))) }, "disk"},
		"a short body":        {func(r *http.Request) { r.ContentLength = 5 }, "announced"},
		"a control character": {func(r *http.Request) { r.Header.Set("X-Customer", "Ann\x01secret") }, "X-Customer"},
		"a second line":       {func(r *http.Request) { r.Header.Set("X-Customer", "Ann\r\nX-Admin: secret") }, "X-Customer"},
		"a deleted character": {func(r *http.Request) { r.Header.Set("X-Customer", "Ann\x7f") }, "X-Customer"},
		"a name with a space": {func(r *http.Request) { r.Header["X Customer"] = []string{"Ann"} }, "name"},
		"a name of none":      {func(r *http.Request) { r.Header[""] = []string{"Ann"} }, "name"},
		"a method":            {func(r *http.Request) { r.Method = "PO ST" }, "method"},
		"a bad host":          {func(r *http.Request) { r.URL.Host = "payments test" }, "cannot be sent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRequest(t, io.MultiReader(strings.NewReader("it")))
			test.change(r)
			_, err := calls.Message(r)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret ") ||
				strings.Contains(err.Error(), "secret@") || strings.Contains(err.Error(), ":secret") {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	req := newRequest(t, nil)
	req.Header["X-Customer"] = []string{"Zo\xeb\tB", "Zoë", ""}
	if _, err := calls.Message(req); err != nil {
		t.Errorf("a header that can be sent: %v", err)
	}
}

func endless() io.ReadCloser {
	return io.NopCloser(strings.NewReader(strings.Repeat("x", outbox.MaxPayload+1)))
}

// TestKeys: which key a request has is the same when it is enqueued as when it is sent.
func TestKeys(t *testing.T) {
	t.Parallel()
	short := client.ProfileIETF()
	short.MaxLength = 20
	for name, each := range map[string]struct {
		profile         *client.Profile
		context, header []string
		want            string
		refused         bool
	}{
		"header before context":       {context: []string{"c"}, header: []string{`"h"`}, want: "h"},
		"context":                     {context: []string{"c"}, want: "c"},
		"none":                        {},
		"none, and no room":           {profile: short, refused: true},
		"empty context":               {context: []string{""}, refused: true},
		"empty header":                {header: []string{""}, refused: true},
		"two lines":                   {header: []string{"a", "a"}, refused: true},
		"not a string":                {header: []string{`"a`}, refused: true},
		"too long":                    {profile: short, header: []string{strings.Repeat("a", 21)}, refused: true},
		"in the header of another":    {profile: client.ProfilePayPal(), header: []string{"h"}},
		"in the context, for another": {profile: client.ProfilePayPal(), context: []string{"c"}, want: "c"},
	} {
		req := newRequest(t, nil)
		for _, key := range each.context {
			req = req.WithContext(client.WithKey(req.Context(), key))
		}
		if each.header != nil {
			req.Header["Idempotency-Key"] = each.header
		}
		m, err := newCalls(t, each.profile).Message(req)
		if errors.Is(err, client.ErrBadKey) != each.refused || !each.refused && err != nil || m.Key != each.want {
			t.Errorf("%s: the key is %q: %v", name, m.Key, err)
		}
	}
}

// TestWhatIsNoOperation is an error for programs that list messages.
func TestWhatIsNoOperation(t *testing.T) {
	t.Parallel()
	good, err := newCalls(t, nil).Message(newRequest(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]outbox.Entry{
		"nothing":      {},
		"another":      {Message: outbox.Message{Payload: []byte(`{}`)}},
		"no header":    {Message: outbox.Message{Payload: []byte("POST http://a\r\nno header\r\n\r\n")}},
		"unreadable":   {Message: good, Unreadable: errors.New("sealed")},
		"a bad answer": {Message: good, Answer: []byte("paid\r\n\r\n")},
		"a cut answer": {Message: good, Answer: []byte(`{"status":200}`)},
	} {
		if o, err := httpcall.OperationOf(&e); err == nil {
			t.Errorf("%s is %+v", name, o)
		}
	}
	if o, err := httpcall.OperationOf(&outbox.Entry{Message: good}); err != nil || o.Outcome != client.OutcomeUnknown {
		t.Errorf("%+v: %v", o, err)
	}
}

// TestRecordOfANewerProgram leaves a message alone whose record a newer program wrote: it is tried again later.
func TestRecordOfANewerProgram(t *testing.T) {
	t.Parallel()
	calls := newCalls(t, nil)
	good, err := calls.Message(newRequest(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, head := range []string{`{"version":2,"status":201}`, `{"version":2,"status":"created"}`} {
		result, err := calls.Route().Handler(t.Context(), &outbox.Delivery{
			Entry: outbox.Entry{Message: good, Answer: []byte(head + "\r\n\r\n")},
		})
		if err == nil || errors.Is(err, outbox.ErrPermanent) || result.Then != nil {
			t.Errorf("%s: %v", head, err)
		}
	}
}
