package onceward_test

import (
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// This file is about what happens to a request on its way to the guard, and must not make two requests look the same.

func TestMountsUnderPrefixesAreDifferentRoutes(t *testing.T) {
	t.Parallel()
	guard, handler := newGuard(t, memory.New()), new(counted)
	mount := func() http.Handler {
		mux := http.NewServeMux()
		mux.Handle("POST /create", guard.Handler(handler, onceward.Reserved(onceward.FailureUnknown)))
		return mux
	}
	mux := http.NewServeMux()
	mux.Handle("/cards/", http.StripPrefix("/cards", mount()))
	mux.Handle("/banks/", http.StripPrefix("/banks", mount()))
	to := func(target string) answer { return serve(mux, newRequest(http.MethodPost, target, "k", `{}`)) }
	to("/cards/create").want(t, "F1", http.StatusCreated, false)
	to("/banks/create").wantProblem(t, "F1: another route", http.StatusUnprocessableEntity, "mismatch")
	to("/cards/create?").want(t, "F1: the same", http.StatusCreated, true)
	to("/cards/create?to=bank").wantProblem(t, "F1: another query", http.StatusUnprocessableEntity, "mismatch")
	handler.wantRuns(t, "F1", 1)
}

const formType = "application/x-www-form-urlencoded"

func parseForm(r *http.Request) error { return r.ParseForm() }

func parseMultipart(r *http.Request) error { return r.ParseMultipartForm(1 << 20) }

// reading lets a middleware read the request before the next handler does.
func reading(t *testing.T, read func(*http.Request) error, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := read(r); err != nil {
			t.Error(err)
		}
		next.ServeHTTP(w, r)
	})
}

func TestABodyThatWasReadInFrontOfTheGuard(t *testing.T) {
	t.Parallel()
	parts := multipartBody("boundary", "1")
	drain := func(r *http.Request) error {
		for buffer := make([]byte, 64); ; {
			if _, err := r.Body.Read(buffer); err != nil {
				return nil // its end
			}
		}
	}
	replace := func(r *http.Request) error {
		r.Body = http.NoBody
		return nil
	}
	for name, test := range map[string]struct {
		read        func(*http.Request) error
		body, media string
		edits       []edit
	}{
		"a form, announced":           {parseForm, "amount=1", formType, nil},
		"a form, in chunks":           {parseForm, "amount=1", formType, []edit{chunked("amount=1")}},
		"multipart, announced":        {parseMultipart, parts.body, parts.media, nil},
		"multipart, in chunks":        {parseMultipart, parts.body, parts.media, []edit{chunked(parts.body)}},
		"something else, announced":   {drain, `{"amount":1}`, "application/json", nil},
		"a form, drained by its read": {drain, "amount=1", formType, nil},
		"replaced by nothing":         {replace, `{"amount":1}`, "application/json", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, handler, events := memory.New(), new(counted), new(journal)
			h := newGuard(t, store, observedBy(events)).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
			server := startServer(t, reading(t, test.read, h))
			a := send(t, server, "k", test.body, append([]edit{withHeader("Content-Type", test.media)}, test.edits...)...)
			if p := a.wantProblem(t, "F1: two amounts would look the same", http.StatusInternalServerError, "body-consumed"); p.Retryable {
				t.Error("A1: the same request will meet the same middleware")
			}
			handler.wantRuns(t, "F1", 0)
			wantNothingStored(t, "F1", store)
			if rejected := observed[onceward.RejectedEvent](events); len(rejected) != 1 || rejected[0].Code != "body-consumed" {
				t.Errorf("M1: rejections seen: %+v", rejected)
			}
		})
	}
}

// TestRequestsWhoseBodyNobodyRead: a middleware that parses forms leaves everything else alone, and an empty body is whole.
func TestRequestsWhoseBodyNobodyRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body, media string
		edits       []edit
	}{
		"JSON":                     {`{"amount":1}`, "application/json", nil},
		"JSON, in chunks":          {`{"amount":1}`, "application/json", []edit{chunked(`{"amount":1}`)}},
		"no body":                  {"", "application/json", nil},
		"nothing, in chunks":       {"", "application/json", []edit{chunked("")}},
		"an empty form":            {"", formType, nil},
		"an empty form, in chunks": {"", formType, []edit{chunked("")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handler := new(counted)
			h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
			server := startServer(t, reading(t, parseForm, h))
			edits := append([]edit{withHeader("Content-Type", test.media)}, test.edits...)
			send(t, server, "k", test.body, edits...).want(t, "F5", http.StatusCreated, false)
			handler.wantRuns(t, "F5", 1)
		})
	}
}
