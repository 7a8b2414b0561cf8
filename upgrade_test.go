package onceward_test

import (
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// TestAnOfferOfHTTP2IsNoUpgrade: some clients offer h2c with every request, and a server may ignore it.
func TestAnOfferOfHTTP2IsNoUpgrade(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	h := newGuard(t, store).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	offering := func(protocol string) answer {
		return post(h, "k", `{}`, withHeader("Connection", "Upgrade, HTTP2-Settings"), withHeader("Upgrade", protocol),
			withHeader("HTTP2-Settings", "AAMAAABkAAQAoAAAAAIAAAAA"))
	}
	for _, protocol := range []string{"websocket", "h2c, websocket"} {
		offering(protocol).wantProblem(t, "A4", http.StatusBadRequest, "upgrade-refused")
	}
	handler.wantRuns(t, "A4", 0)
	wantNothingStored(t, "A4", store)
	offering("h2c").want(t, "A4: an offer, not a demand", http.StatusCreated, false)
	offering("H2C").want(t, "A4: an offer, not a demand", http.StatusCreated, true)
	post(h, "k", `{}`).want(t, "A4: the same request without it", http.StatusCreated, true)
	handler.wantRuns(t, "A4", 1)
}
