package client_test

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/client"
)

// TestObserver tells of each attempt, of each wait and of the end.
func TestObserver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		seen := &events{}
		service := &script{lines: []line{
			{err: errReset},
			says(503, "not-executed", true).with("Retry-After", "2"), answers(503),
			created.with("Idempotent-Replayed", "true"),
		}}
		got := post(t.Context(), newClient(t, client.Config{Base: service, Observer: seen}))
		attempts, waits := eventsOf[client.AttemptEvent](seen), eventsOf[client.WaitEvent](seen)
		if len(attempts) != 4 || len(waits) != 3 {
			t.Fatalf("%d attempts and %d waits: %+v", len(attempts), len(waits), seen.all)
		}
		for i, status := range []int{0, 503, 503, 201} {
			e := attempts[i]
			if e.Status != status || e.Attempt != i+1 || e.Key != got.key || errors.Is(e.Err, errReset) != (status == 0) ||
				e.Request.URL.Path != "/payments" {
				t.Errorf("attempt %d: %+v", i+1, e)
			}
		}
		for i, reason := range []string{"error", "not-executed", "status 503"} {
			if e := waits[i]; e.Reason != reason || e.Attempt != i+1 || e.Key != got.key {
				t.Errorf("wait %d: %+v", i+1, e)
			}
		}
		if waits[1].Wait < 2*time.Second {
			t.Errorf("the wait is %v", waits[1].Wait)
		}
		end := eventsOf[client.FinishedEvent](seen)
		if len(end) != 1 || end[0].Attempts != 4 || end[0].Outcome != client.OutcomeAnswered || !end[0].Replayed ||
			end[0].Status != 201 || end[0].Err != nil || end[0].Elapsed != got.took {
			t.Errorf("the end is %+v", end)
		}

		*seen = events{}
		service.lines = []line{{err: errDial}}
		post(t.Context(), newClient(t, client.Config{Base: service, Observer: seen, MaxAttempts: 1}))
		end = eventsOf[client.FinishedEvent](seen)
		if len(end) != 1 || end[0].Attempts != 1 || end[0].Outcome != client.OutcomeNotExecuted || end[0].Err == nil {
			t.Errorf("the end is %+v", end)
		}
	})
}

// TestClassify judges what comes from elsewhere by what is certain.
func TestClassify(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]client.Outcome{
		200: client.OutcomeAnswered, 299: client.OutcomeAnswered, 302: client.OutcomeUnknown, 404: client.OutcomeUnknown,
		503: client.OutcomeUnknown,
	} {
		if got := client.Classify(&http.Response{StatusCode: status}, nil); got != want {
			t.Errorf("%d is %v", status, got)
		}
	}
	if client.Classify(nil, io.EOF) != client.OutcomeUnknown || client.Classify(nil, nil) != client.OutcomeUnknown {
		t.Error("what is not known is taken for known")
	}
	for outcome, name := range map[client.Outcome]string{
		client.OutcomeAnswered: "answered", client.OutcomeNotExecuted: "not_executed", client.OutcomeUnknown: "unknown",
	} {
		if outcome.String() != name {
			t.Errorf("%d is called %v", outcome, outcome)
		}
	}
}
