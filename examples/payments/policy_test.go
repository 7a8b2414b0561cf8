package payments_test

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestThePolicyIsPublished: what a client sees leads to a page that says how long keys last, as long as they do (A8).
func TestThePolicyIsPublished(t *testing.T) {
	t.Parallel()
	stories{"policy": func(w *world) {
		first := w.send(http.MethodPost, "/payments", alice, "policy", order(100, "policy"))
		again := w.send(http.MethodPost, "/payments", alice, "policy", order(100, "policy"))
		refused := w.send(http.MethodPost, "/payments", alice, "", order(100, "policy"))
		const link = `</idempotency>; rel="service-doc"; type="text/html"`
		for _, r := range []reply{first, again, refused} {
			if n := strings.Count(strings.Join(r.header["Link"], " "), link); n != 1 {
				w.Errorf("A8: %d links to the policy in %d with %q, want one", n, r.status, r.header["Link"])
			}
		}
		first.want(http.StatusCreated, "")
		expires, err := http.ParseTime(first.header.Get("Idempotency-Key-Expires"))
		must(w, err)
		if in := time.Until(expires).Round(time.Hour); in != 24*time.Hour {
			w.Errorf("A8: the answer expires in %s", in)
		}
		page := w.send(http.MethodGet, "/idempotency", "", "", "")
		page.want(http.StatusOK, "kept for 24 hours")
		page.want(http.StatusOK, "1 to 255 visible ASCII characters")
	}}.onStores(t, nil)
}
