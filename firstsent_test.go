package onceward_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

func TestFirstSent(t *testing.T) {
	t.Parallel()
	const retention, tolerance = 24 * time.Hour, 5 * time.Minute
	const within = retention - tolerance
	ago := func(d time.Duration) []string {
		return []string{time.Now().Add(-d).UTC().Format(http.TimeFormat)}
	}
	tests := map[string]struct {
		lines  func() []string
		status int // 201 if accepted
		code   string
	}{
		"now":                         {func() []string { return ago(0) }, http.StatusCreated, ""},
		"ahead within the tolerance":  {func() []string { return ago(-tolerance) }, http.StatusCreated, ""},
		"ahead past the tolerance":    {func() []string { return ago(-tolerance - time.Second) }, http.StatusPreconditionFailed, "first-sent-in-future"},
		"as old as is accepted":       {func() []string { return ago(within) }, http.StatusCreated, ""},
		"older than is accepted":      {func() []string { return ago(within + time.Second) }, http.StatusPreconditionFailed, "first-sent-too-old"},
		"older than the retention":    {func() []string { return ago(2 * retention) }, http.StatusPreconditionFailed, "first-sent-too-old"},
		"from the beginning of time":  {func() []string { return []string{"Mon, 01 Jan 0001 00:00:00 GMT"} }, http.StatusPreconditionFailed, "first-sent-too-old"},
		"not a date":                  {func() []string { return []string{"yesterday"} }, http.StatusBadRequest, "first-sent-invalid"},
		"not an HTTP date":            {func() []string { return []string{"2026-01-31T12:00:00Z"} }, http.StatusBadRequest, "first-sent-invalid"},
		"empty":                       {func() []string { return []string{""} }, http.StatusBadRequest, "first-sent-invalid"},
		"two lines":                   {func() []string { return append(ago(0), ago(0)...) }, http.StatusBadRequest, "first-sent-invalid"},
		"an older form of HTTP dates": {func() []string { return []string{time.Now().UTC().Format(time.ANSIC)} }, http.StatusCreated, ""},
	}
	for name, test := range tests {
		for kind, option := range map[string]onceward.Option{
			"required": onceward.RequireFirstSent(within, tolerance), "checked": onceward.CheckFirstSent(within, tolerance),
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store, handler := memory.New(), new(counted)
					h := newGuard(t, store).Handler(handler, reserved, onceward.Retain(retention), option)
					a := post(h, "k", `{}`, withHeader("Idempotency-First-Sent", test.lines()...))
					if test.status == http.StatusCreated {
						a.want(t, "L4", http.StatusCreated, false)
						return
					}
					a.wantProblem(t, "L4", test.status, test.code)
					handler.wantRuns(t, "L4", 0)
					wantNothingStored(t, "L4", store)
				})
			})
		}
	}
}

func TestFirstSentMissing(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	guard := newGuard(t, store)
	required := guard.Handler(handler, reserved, onceward.RequireFirstSent(time.Hour, 0))
	post(required, "k", `{}`).wantProblem(t, "L4: missing where required", http.StatusBadRequest, "first-sent-missing")
	handler.wantRuns(t, "L4", 0)
	wantNothingStored(t, "L4", store)
	checked := guard.Handler(handler, reserved, onceward.CheckFirstSent(time.Hour, 0))
	post(checked, "k", `{}`).want(t, "L4: checked if present", http.StatusCreated, false)
	unchecked := guard.Handler(handler, reserved)
	post(unchecked, "k2", `{}`, withHeader("Idempotency-First-Sent", "nonsense")).
		want(t, "L4: not asked for", http.StatusCreated, false)
}

func TestACapturedRequestIsNotReplayedAfterItsRecordHasGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := new(counted)
		h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.RequireFirstSent(23*time.Hour, time.Minute))
		sent := withHeader("Idempotency-First-Sent", time.Now().UTC().Format(http.TimeFormat))
		post(h, "k", `{}`, sent).want(t, "L4", http.StatusCreated, false)
		for range 30 {
			time.Sleep(time.Hour)
			if a := post(h, "k", `{}`, sent); !a.replayed() && a.status != http.StatusPreconditionFailed {
				t.Errorf("L4: the captured request was answered %d %q", a.status, a.body)
			}
		}
		handler.wantRuns(t, "L4", 1)
	})
}

// TestRaisedRetention: a record from before a retention was raised lived as long as it was then.
func TestRaisedRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, handler := memory.New(), new(counted)
		guard := newGuard(t, store)
		const before = 2 * time.Hour
		inTime := onceward.RequireFirstSent(before-time.Minute, time.Minute)
		h := guard.Handler(handler, reserved, onceward.Retain(before), inTime)
		sent := withHeader("Idempotency-First-Sent", time.Now().UTC().Format(http.TimeFormat))
		post(h, "k", `{}`, sent).want(t, "L4", http.StatusCreated, false)
		time.Sleep(before)
		h = guard.Handler(handler, reserved, onceward.Retain(48*time.Hour), inTime)
		post(h, "k", `{}`, sent).wantProblem(t, "L4", http.StatusPreconditionFailed, "first-sent-too-old")
		handler.wantRuns(t, "L4", 1)
	})
}
