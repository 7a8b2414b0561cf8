package onceward_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestProblemsOfAnotherBase: a service may document the problems itself, and call them by the words of the draft.
func TestProblemsOfAnotherBase(t *testing.T) {
	t.Parallel()
	events := new(journal)
	guard := newGuard(t, memory.New(), observedBy(events), func(c *onceward.Config) {
		c.ProblemBase, c.ProblemCode = "https://api.example.com/problems/", onceward.DraftCode
	})
	a := post(guard.Handler(new(counted), reserved), "", `{}`)
	for _, want := range []string{
		`"type":"https://api.example.com/problems/missing-key"`, `"title":"Idempotency-Key is missing"`,
		`"code":"idempotency-key-missing"`,
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("A1: %s is not in %s", want, a.body)
		}
	}
	want := `<https://api.example.com/problems/missing-key>; rel="describedby"; type="text/html"`
	if got := a.header.Get("Link"); got != want {
		t.Errorf("A1: Link %q", got)
	}
	if told := observed[onceward.RejectedEvent](events); len(told) != 1 || told[0].Code != "missing-key" {
		t.Errorf("M1: the observer was told %+v, want the code that is the same everywhere", told)
	}
}

func TestDraftCodes(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"missing-key": "idempotency-key-missing", "invalid-key": "idempotency-key-invalid",
		"mismatch": "idempotency-key-already-used", "in-progress": "request-outstanding",
		"outcome-unknown": "outcome-unknown",
	} {
		if got := onceward.DraftCode(code); got != want {
			t.Errorf("A1: %s is %s by the draft, want %s", code, got, want)
		}
	}
}

func TestProblemBasesThatLeadNowhere(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"problems#", "https://exa mple.com/", "://", "https://api.example.com/problems"} {
		config := onceward.Config{Secret: testSecret, ProblemBase: base}
		if _, err := onceward.New(memory.New(), config); err == nil || !strings.Contains(err.Error(), "ProblemBase") {
			t.Errorf("A1: a base of %q gets %v", base, err)
		}
	}
	for _, base := range []string{"/problems#", "/problems/", "/problems?code=", "/problems?", "urn:example:problem:"} {
		if _, err := onceward.New(memory.New(), onceward.Config{Secret: testSecret, ProblemBase: base}); err != nil {
			t.Errorf("A1: %v", err)
		}
	}
}

// TestAProblemLeavesOtherLinksAlone: the links of a middleware in front stay, before the problem's own.
func TestAProblemLeavesOtherLinksAlone(t *testing.T) {
	t.Parallel()
	const other = `</openapi.json>; rel="service-desc"`
	guarded := newGuard(t, memory.New()).Handler(new(counted), reserved)
	a := post(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", other)
		guarded.ServeHTTP(w, r)
	}), "", `{}`)
	a.wantProblem(t, "A1", http.StatusBadRequest, "missing-key")
	if links := a.header["Link"]; len(links) != 2 || links[0] != other {
		t.Errorf("A1: the links are %q", links)
	}
}

// TestAProblemIsFoundByItsInstance: the instance that a client reports is in the log and in the observer's event.
func TestAProblemIsFoundByItsInstance(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	events := new(journal)
	guard := newGuard(t, memory.New(), observedBy(events), func(c *onceward.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	h := guard.Handler(new(counted), reserved)
	post(h, "private-key", `{}`)
	told := make(map[string]bool)
	for code, happen := range map[string]func() answer{
		"missing-key":   func() answer { return post(h, "", `{}`) },
		"mismatch":      func() answer { return post(h, "private-key", `{"x":1}`) },
		"key-not-found": func() answer { return ask(guard.StatusHandler(), "/operations/private-other") },
	} {
		a := happen()
		p := a.wantProblem(t, "A1", a.status, code)
		if told[p.Instance] {
			t.Errorf("A1: two occurrences are called %s", p.Instance)
		}
		told[p.Instance] = true
		if !strings.Contains(log.String(), "instance="+p.Instance) {
			t.Errorf("A1: %s is not in the log: %s", p.Instance, log.String())
		}
		seen := slices.ContainsFunc(observed[onceward.RejectedEvent](events), func(e onceward.RejectedEvent) bool {
			return e.Code == code && e.Instance == p.Instance
		}) || slices.ContainsFunc(observed[onceward.ProblemEvent](events), func(e onceward.ProblemEvent) bool {
			return e.Code == code && e.Instance == p.Instance && e.Status == a.status && e.Scope == "alice"
		})
		if !seen {
			t.Errorf("A1: the observer was not told of %s", p.Instance)
		}
	}
	if strings.Contains(log.String(), "private") {
		t.Errorf("M3: the log tells a key: %s", log.String())
	}
}

// TestAStoredProblemIsReplayed: byte for byte, with its instance and its link.
func TestAStoredProblemIsReplayed(t *testing.T) {
	t.Parallel()
	handler := &counted{then: func(http.ResponseWriter, *http.Request) { panic("the handler's panic") }}
	h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureStore))
	panicOf(func() { post(h, "k", `{}`) })
	first, second := post(h, "k", `{}`), post(h, "k", `{}`)
	first.wantProblem(t, "E5", http.StatusInternalServerError, "handler-failed")
	second.wantSame(t, "A2", first)
	if !first.replayed() || !slices.Equal(first.header["Link"], second.header["Link"]) {
		t.Errorf("A2: replayed %t with the links %q and %q", first.replayed(), first.header["Link"], second.header["Link"])
	}
	handler.wantRuns(t, "E5", 1)
}

// TestChallenges: a 401 contains how to authenticate (RFC 9110, 15.5.2), wherever it is from.
func TestChallenges(t *testing.T) {
	t.Parallel()
	const bearer, basic = `Bearer realm="payments"`, `Basic realm="payments"`
	strangers := func(err error) func(*onceward.Config) {
		return func(c *onceward.Config) { c.Scope = func(*http.Request) (string, error) { return "", err } }
	}
	noSession := onceward.BindSession(func(*http.Request) string { return "" }, bearer)
	for name, test := range map[string]struct {
		err   error
		route []onceward.Option
		want  []string
	}{
		"one":                    {onceward.Unauthenticated(bearer), nil, []string{bearer}},
		"two":                    {onceward.Unauthenticated(bearer, basic), nil, []string{bearer, basic}},
		"wrapped":                {fmt.Errorf("no token: %w", onceward.Unauthenticated(bearer)), nil, []string{bearer}},
		"none":                   {onceward.ErrUnauthenticated, nil, nil},
		"an empty one":           {onceward.Unauthenticated(""), nil, nil},
		"a nil one":              {(*onceward.UnauthenticatedError)(nil), nil, nil},
		"one that would be two":  {onceward.Unauthenticated("Bearer\r\nSet-Cookie: a=b"), nil, []string{"Bearer  Set-Cookie: a=b"}},
		"a session that is none": {nil, []onceward.Option{noSession}, []string{bearer}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			configure := func(*onceward.Config) {}
			if test.err != nil {
				configure = strangers(test.err)
			}
			guard, handler := newGuard(t, memory.New(), configure), new(counted)
			for _, a := range []answer{
				post(guard.Handler(handler, append(test.route, reserved)...), "k", `{}`),
				ask(guard.StatusHandler(test.route...), "/operations/k"),
			} {
				a.wantProblem(t, "A8", http.StatusUnauthorized, "unauthenticated")
				if got := a.header["Www-Authenticate"]; !slices.Equal(got, test.want) {
					t.Errorf("A8: WWW-Authenticate is %q, want %q", got, test.want)
				}
			}
			handler.wantRuns(t, "A7", 0)
		})
	}
}

// TestAProblemOfOnesOwn: a middleware in front of the guard refuses in the same form.
func TestAProblemOfOnesOwn(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	(&onceward.Problem{
		Type: `https://api.example.com/problems?a=<b>&c="d" é`, Title: "Slower", Status: http.StatusTooManyRequests,
		Code: "slower", Retryable: true, RetryAfter: 1,
	}).Write(w)
	if got := w.Header().Get("Link"); !strings.HasPrefix(got,
		`<https://api.example.com/problems?a=%3Cb%3E&c=%22d%22%20%C3%A9>; rel=`) {
		t.Errorf("A1: Link %q", got)
	}
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" ||
		!strings.Contains(w.Body.String(), `"instance":"urn:uuid:`) {
		t.Errorf("A1: %d %v %s", w.Code, w.Header(), w.Body)
	}
	w = httptest.NewRecorder()
	(&onceward.Problem{Type: "urn:example:slower", Status: http.StatusTooManyRequests, Code: "slower"}).Write(w)
	if link := w.Header().Get("Link"); link != "" {
		t.Errorf("A1: a name that leads nowhere is linked: %q", link)
	}
}

// TestAProblemIsWrittenMoreThanOnce: one that a package keeps is each time another occurrence, and can be written by
// many requests at once.
func TestAProblemIsWrittenMoreThanOnce(t *testing.T) {
	t.Parallel()
	kept := &onceward.Problem{Status: http.StatusBadRequest, Code: "missing-key", Title: "no key"}
	before, answers := *kept, make(chan string)
	for range 2 {
		go func() {
			w := httptest.NewRecorder()
			kept.Write(w)
			answers <- w.Body.String()
		}()
	}
	if first, second := <-answers, <-answers; first == second {
		t.Errorf("A1: two occurrences have one instance: %s", first)
	}
	if !reflect.DeepEqual(*kept, before) {
		t.Errorf("A1: the problem was changed to %+v", *kept)
	}
}

// TestUnknownProblemsAreAboutTheRecord: the event of an outcome that became unknown names the operation.
func TestUnknownProblemsAreAboutTheRecord(t *testing.T) {
	t.Parallel()
	events := new(journal)
	handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) { onceward.FromContext(r.Context()).Unknown() }}
	h := newGuard(t, memory.New(), observedBy(events)).Handler(handler, reserved, onceward.OperationName("pay"))
	p := post(h, "k", `{}`).wantProblem(t, "E7", http.StatusInternalServerError, "outcome-unknown")
	told := observed[onceward.ProblemEvent](events)
	want := onceward.ProblemEvent{
		ID: store.ID{Scope: "alice", Key: "k"}, Operation: "pay", Status: 500, Code: "outcome-unknown", Instance: p.Instance,
	}
	if len(told) != 1 || told[0] != want {
		t.Errorf("M1: the observer was told %+v, want %+v", told, want)
	}
}
