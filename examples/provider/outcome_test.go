package provider

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAnswersOfStrangersAreInDoubt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		body   string
		want   string
	}{
		{201, `{"id":"ch_1","status":"succeeded"}`, "done"},
		{201, `<html>`, "unknown"},
		{402, `{"id":"ch_1","status":"declined"}`, "declined"},
		{402, `{"id":"ch_1","status":"succeeded"}`, "unknown"},
		{402, `pay here`, "unknown"},
		{404, `no such page`, "unknown"},
		{404, `{"error":{}}`, "unknown"},
		{422, `{"error":{"code":"idempotency_key_reused"}}`, "refused idempotency_key_reused"},
		{502, `bad gateway`, "unknown"},
		{503, `{"error":{"code":"internal"}}`, "unknown"},
		{503, `{"error":{"code":"not_processed"}}`, "refused not_processed"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.body))
		}))
		_, err := newClient(t, server.URL).Charge(bounded(t), "k", order("r"))
		if got := outcome(err); got != c.want {
			t.Errorf("%d %s: %s, want %s", c.status, c.body, got, c.want)
		}
		server.Close()
	}
}

func TestRequestThatCannotBeSentIsRefused(t *testing.T) {
	t.Parallel()
	_, err := newClient(t, "http://127.0.0.1:bad").Charge(bounded(t), "k", order("r"))
	if got := outcome(err); got != "refused not_sent" {
		t.Errorf("%s (%v)", got, err)
	}
}

// TestAFailedLookUpIsNoRefusal: that a question is refused, or cannot be sent, says nothing of the refund.
func TestAFailedLookUpIsNoRefusal(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"error":{"code":"not_processed"}}`))
	}))
	t.Cleanup(server.Close)
	for url, want := range map[string]string{server.URL: "look-up failed 503", "http://127.0.0.1:bad": "look-up failed 0"} {
		_, found, err := newClient(t, url).FindRefund(bounded(t), "k")
		if got := outcome(err); found || got != want || strings.Contains(err.Error(), "nothing was done") {
			t.Errorf("%s: %s (%v), want %s", url, got, err, want)
		}
	}
}

func TestAnswerThatIsCutOffIsInDoubt(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"id":"ch_1"`))
	}))
	t.Cleanup(server.Close)
	if _, err := newClient(t, server.URL).Charge(bounded(t), "k", order("r")); outcome(err) != "unknown" {
		t.Errorf("%v, want an unknown outcome", err)
	}
}
