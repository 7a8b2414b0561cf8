package onceward_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

func TestReplayIsByteForByte(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		media  string
		body   string
	}{
		"created":            {http.StatusCreated, "application/json", `{"id": 1}` + "\n"},
		"binary":             {http.StatusOK, "application/octet-stream", "\x00\xff\r\n\x1b"},
		"empty":              {http.StatusOK, "", ""},
		"no content":         {http.StatusNoContent, "", ""},
		"not modified":       {http.StatusNotModified, "", ""},
		"redirect":           {http.StatusSeeOther, "text/html", "see there"},
		"client's error":     {http.StatusConflict, "text/plain", "no"},
		"an unusual status":  {299, "text/plain", "what"},
		"a sniffed type":     {http.StatusOK, "", "<html>hello"},
		"net/http chunks it": {http.StatusOK, "text/plain", strings.Repeat("0123456789", 1000)},
		"1 MiB":              {http.StatusOK, "text/plain", strings.Repeat("x", 1<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
				if test.media != "" {
					w.Header().Set("Content-Type", test.media)
				}
				w.WriteHeader(test.status)
				io.WriteString(w, test.body)
			}}
			server := startServer(t, newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureUnknown)))
			noRedirects(server.Client())
			first := send(t, server, "k", `{}`)
			first.want(t, "section 6", test.status, false)
			if first.body != test.body {
				t.Errorf("section 6: the first answer has %d bytes, want the %d that the handler wrote", len(first.body), len(test.body))
			}
			expires, err := http.ParseTime(first.header.Get("Idempotency-Key-Expires"))
			if err != nil || time.Until(expires) < 23*time.Hour || time.Until(expires) > 24*time.Hour {
				t.Errorf("section 6: Idempotency-Key-Expires is %q, want an HTTP date in 24 hours", first.header.Get("Idempotency-Key-Expires"))
			}
			second := send(t, server, "k", `{}`)
			second.want(t, "section 6", test.status, true)
			second.header.Del("Idempotent-Replayed")
			first.header.Del("Date")
			second.header.Del("Date")
			if second.body != first.body || fmt.Sprint(second.header) != fmt.Sprint(first.header) {
				t.Errorf("section 6, A2: replayed %d bytes with %v, first were %d bytes with %v", len(second.body), second.header, len(first.body), first.header)
			}
			if length := fmt.Sprint(len(test.body)); len(test.body) > 2048 && first.header.Get("Content-Length") != length {
				t.Errorf("A2: the first answer is not framed with its length %s: %v", length, first.header)
			}
			if test.body == "" && test.status != http.StatusOK && second.header.Get("Content-Length") != "" {
				t.Errorf("A3: %d with Content-Length %q", test.status, second.header.Get("Content-Length"))
			}
			handler.wantRuns(t, "section 6", 1)
		})
	}
}

func noRedirects(client *http.Client) {
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
}

func TestTheReplayedHeaderHasAName(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New(), func(c *onceward.Config) { c.ReplayedHeader = "x-was-replayed" })
	h := guard.Handler(new(counted), onceward.Reserved(onceward.FailureUnknown))
	if got := post(h, "k", `{}`).header.Get("X-Was-Replayed"); got != "" {
		t.Errorf("section 6: the first answer says %q", got)
	}
	again := post(h, "k", `{}`)
	if got := again.header.Get("X-Was-Replayed"); got != "true" || again.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("section 6: the replay's header is %v", again.header)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			if d, err := time.ParseDuration(r.URL.Query().Get("retain")); err == nil {
				onceward.FromContext(r.Context()).Retain(d)
			}
		}}
		h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.Retain(2*time.Hour))
		at := func(key, target string) answer { return serve(h, newRequest(http.MethodPost, target, key, `{}`)) }
		until := func(a answer) time.Duration {
			expires, err := http.ParseTime(a.header.Get("Idempotency-Key-Expires"))
			if err != nil {
				t.Fatal(err)
			}
			return time.Until(expires)
		}
		if got := until(at("plain", "/p")); got != 2*time.Hour {
			t.Errorf("section 6: the answer is kept for %s, want 2h", got)
		}
		if got := until(at("longer", "/p?retain=5h")); got != 5*time.Hour {
			t.Errorf("section 11: the record is kept for %s, want the 5h that the handler asked for", got)
		}
		if got := until(at("shorter", "/p?retain=1m")); got != 2*time.Hour {
			t.Errorf("section 11: the record is kept for %s, want the route's 2h", got)
		}
		time.Sleep(2*time.Hour - time.Second)
		at("plain", "/p").want(t, "S2: just before the expiry", http.StatusOK, true)
		handler.wantRuns(t, "S2", 3)
		time.Sleep(time.Second)
		at("plain", "/p").want(t, "section 4: past its expiry, as if absent", http.StatusOK, false)
		at("longer", "/p?retain=5h").want(t, "section 11: kept longer", http.StatusOK, true)
		handler.wantRuns(t, "section 4", 4)
	})
}
