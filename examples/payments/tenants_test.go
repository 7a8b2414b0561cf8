package payments_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/provider"
)

// aliceSecret and bobSecret are what the provider signs with for accounts that are customers of its own.
const (
	aliceSecret = "the webhooks of alice alone"
	bobSecret   = "the webhooks of bob alone"
)

// TestWebhooksOfAccounts: an account that is the provider's customer itself is heard about its own refunds, whatever
// else it has to say.
func TestWebhooksOfAccounts(t *testing.T) {
	t.Parallel()
	onStores(t, func(s *settings) {
		s.WebhookSecrets = map[string]string{"alice": aliceSecret, "bob": bobSecret}
		unheard := strikes(provider.TimeoutAfter, "/refunds", "")
		unheard.Times = 2
		s.faults = []provider.Rule{unheard}
	}, func(t *testing.T, w *world) {
		w.bank.SetWebhook(provider.Webhook{})
		p := w.payment(1900, "r")
		w.refund(p, 500).want(http.StatusInternalServerError, "outcome-unknown")
		made := w.bank.Ledger().Refunds(p.Charge)[0]
		for _, sent := range []struct {
			account, secret string
			status          int
		}{
			{"bob", bobSecret, http.StatusNoContent},
			{"alice", bobSecret, http.StatusUnauthorized},
			{"carol", bobSecret, http.StatusUnauthorized},
		} {
			if status := w.tell(sent.account, sent.secret, made); status != sent.status {
				t.Errorf("what %q signed for %s was answered with %d, want %d", sent.secret, sent.account, status, sent.status)
			}
			w.refund(p, 500).want(http.StatusConflict, "outcome-unknown")
		}
		if status := w.tell("alice", aliceSecret, made); status != http.StatusNoContent {
			t.Errorf("alice was answered with %d", status)
		}
		w.wantOneRefund(p, w.refunded(p, 500))
		w.claimsRefundOfOther(w.payment(1900, "claiming"), made)
	})
}

// claimsRefundOfOther: alice says that a refund of hers has the id of one that was made of another payment. The
// provider is asked instead.
func (w *world) claimsRefundOfOther(p payments.Payment, other provider.Refund) {
	w.Helper()
	w.refund(p, 300).want(http.StatusInternalServerError, "outcome-unknown")
	claimed := w.bank.Ledger().Refunds(p.Charge)[0]
	claimed.ID, claimed.Amount = other.ID, 1
	if status := w.tell("alice", aliceSecret, claimed); status != http.StatusNoContent {
		w.Errorf("alice was answered with %d", status)
	}
	w.wantOneRefund(p, w.refunded(p, 300))
	for _, made := range []provider.Refund{other, w.bank.Ledger().Refunds(p.Charge)[0]} {
		n := w.number(`SELECT count(*) FROM refund WHERE id = $1 AND amount = $2 AND payment IN
			(SELECT id FROM payment WHERE charge = $3)`, made.ID, made.Amount, made.Charge)
		if n != 1 {
			w.Errorf("the refund %+v is not written down as it was made", made)
		}
	}
}

// tell delivers a webhook of an account about a refund.
func (w *world) tell(account, secret string, made provider.Refund) int {
	w.Helper()
	body, err := json.Marshal(provider.Event{
		ID: "evt_" + made.Charge + made.ID, Type: provider.EventRefunded, Created: made.Created,
		Data: provider.EventData{Refund: &made},
	})
	must(w, err)
	request, err := http.NewRequestWithContext(w.Context(), http.MethodPost, w.server.URL+"/events/"+account, bytes.NewReader(body))
	must(w, err)
	request.Header.Set(provider.SignatureHeader, provider.Sign(secret, time.Now(), body))
	response, err := http.DefaultClient.Do(request)
	must(w, err)
	must(w, response.Body.Close())
	return response.StatusCode
}
