package crashtest

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

const payment = `{"Amount":1900}`

// noAnswer is how long the provider lets a caller wait that it does not answer.
const noAnswer = 300 * time.Millisecond

// fault makes the provider do something to the first charge.
func (w *world) fault(kinds ...provider.Kind) {
	w.Helper()
	var rules []provider.Rule
	for _, kind := range kinds {
		rule := provider.Rule{
			Kind: kind, Times: 1, Match: provider.Match{Method: http.MethodPost, Path: "/charges"}, Name: string(kind),
		}
		if kind != provider.Hold { // which lasts until the test releases it
			rule.Delay = noAnswer
		}
		rules = append(rules, rule)
	}
	must(w, w.provider.SetFaults(provider.Faults{Rules: rules}))
}

// becomesUnknown sends a payment whose outcome is not learned.
func (w *world) becomesUnknown(p *shopProcess, key string) {
	w.Helper()
	if r := p.post("/payments", key, payment); r.status != http.StatusInternalServerError || !strings.Contains(r.body, "outcome-unknown") {
		w.Fatalf("the first answer is %+v, want 500 outcome-unknown", r)
	}
}

// retryIsRefused makes sure that a retry is not executed.
func (w *world) retryIsRefused(p *shopProcess, key string) {
	w.Helper()
	if r := p.post("/payments", key, payment); r.status != http.StatusConflict || !strings.Contains(r.body, "outcome-unknown") {
		w.Errorf("a retry got %+v, want 409 outcome-unknown", r)
	}
}

// wantReplay makes sure that a retry gets the provider's answer, and that there was one charge.
func (w *world) wantReplay(p *shopProcess, key string) {
	w.Helper()
	charges := w.provider.Charges(key)
	if len(charges) != 1 {
		w.Fatalf("there are %d charges, want one", len(charges))
	}
	r := p.post("/payments", key, payment)
	if r.status != http.StatusCreated || !r.replayed || !strings.Contains(r.body, charges[0].ID) {
		w.Errorf("the retry got %+v, want the replay of charge %s", r, charges[0].ID)
	}
}

// TestSettledByThePoller: the provider charges and does not answer.
func TestSettledByThePoller(t *testing.T) {
	t.Parallel()
	for _, kind := range []provider.Kind{provider.TimeoutAfter, provider.ErrorAfter, provider.ResetAfter} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			if kind != provider.ResetAfter {
				nightly.Only(t, "a connection that is reset is tested")
			}
			onStores(t, false, func(t *testing.T, w *world) {
				w.fault(kind)
				deaf := w.opens(nil)
				w.becomesUnknown(deaf, "k")
				w.retryIsRefused(deaf, "k")
				asking := w.opens(func(s *shopSettings) { s.Poll = true })
				rec := w.awaits("k", store.StateCompleted)
				if rec.ProviderID == "" {
					t.Error("the record does not know the provider's id")
				}
				w.wantReplay(asking, "k")
			})
		})
	}
}

// TestDeclinedIsCompleted: a failure that the provider tells of is an answer, and is stored as one.
func TestDeclinedIsCompleted(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "TestSettledByThePoller has a poller that learns an outcome")
	onStores(t, false, func(t *testing.T, w *world) {
		w.fault(provider.TimeoutAfter)
		shop := w.opens(func(s *shopSettings) { s.Poll = true })
		const declined = `{"Amount":666}`
		if r := shop.post("/payments", "k", declined); r.status != http.StatusInternalServerError {
			t.Fatalf("the first answer is %+v", r)
		}
		if r := shop.settles("/payments", "k", declined); r.status != http.StatusPaymentRequired || w.charges("k") != 0 {
			t.Errorf("in the end %+v and %d charges, want 402 and none", r, w.charges("k"))
		}
	})
}

// TestSettledByAWebhook: the provider does not answer questions, but sends an event, whenever it likes.
func TestSettledByAWebhook(t *testing.T) {
	t.Parallel()
	for name, kinds := range map[string][]provider.Kind{
		"afterwards":  {provider.TimeoutAfter},
		"twice":       {provider.TimeoutAfter, provider.WebhookDuplicate},
		"before":      {provider.TimeoutAfter, provider.WebhookFirst},
		"after reset": {provider.ResetAfter},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nightly.Only(t, "TestBookingSettledByAWebhook has a webhook")
			onStores(t, false, func(t *testing.T, w *world) {
				// What comes while the payment is in progress is kept, and read by the poller. What comes afterwards settles at
				// once.
				late := name == "afterwards"
				shop := w.opens(func(s *shopSettings) { s.Poll = !late })
				hook, deliver := shop.url+"/events", func() {}
				if late {
					hook, deliver = w.keepsWebhook(shop)
				}
				w.provider.SetWebhook(provider.Webhook{URL: hook, Secret: hookSecret})
				w.failToAnswer(kinds)
				w.becomesUnknown(shop, "k")
				deliver()
				w.awaits("k", store.StateCompleted)
				w.wantReplay(shop, "k")
			})
		})
	}
}

// keepsWebhook takes an event of the provider, and returns where it does so, and how it reaches the shop.
func (w *world) keepsWebhook(shop *shopProcess) (url string, deliver func()) {
	kept := make(chan *http.Request, 1)
	keeper := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		event, _ := http.NewRequestWithContext(context.Background(), r.Method, shop.url+"/events", bytes.NewReader(body))
		if event.Header = r.Header.Clone(); err == nil {
			kept <- event
		}
	}))
	w.Cleanup(keeper.Close)
	return keeper.URL, func() {
		w.Helper()
		response, err := oneShot.Do(await.Value(w, "the provider's event", kept))
		must(w, err)
		must(w, response.Body.Close())
	}
}

// failToAnswer makes the provider fail to answer the first charge, and every question.
func (w *world) failToAnswer(kinds []provider.Kind) {
	w.Helper()
	rules := []provider.Rule{{Kind: provider.ErrorBefore, Match: provider.Match{Method: http.MethodGet}}}
	for _, kind := range kinds {
		rules = append(rules, provider.Rule{
			Kind: kind, Times: 1, Match: provider.Match{Method: http.MethodPost, Path: "/charges"}, Delay: noAnswer,
		})
	}
	must(w, w.provider.SetFaults(provider.Faults{Rules: rules}))
}

// TestSettledByAnOperator: the limit is reached, and a person decides. Each act is in the audit.
func TestSettledByAnOperator(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "reconcile.TestActs has the operator")
	onStores(t, false, func(t *testing.T, w *world) {
		w.fault(provider.TimeoutBefore, provider.TimeoutBefore)
		shop := w.opens(func(s *shopSettings) { s.Poll, s.Limit = true, 2 })
		w.becomesUnknown(shop, "k")
		operator, err := reconcile.NewOperator(w.guard, w.store)
		must(t, err)
		letter := w.awaitsDeadLetter(operator, 2)
		w.retryIsRefused(shop, "k")
		claim := store.Claim{ID: letter.ID, Attempt: letter.Attempt}
		if err := operator.ResolveNotExecuted(t.Context(), reconcile.By{Who: "zoe"}, claim); err == nil {
			t.Error("an act without a reason was accepted")
		}
		must(t, operator.RetryNow(t.Context(), reconcile.By{Who: "zoe", Why: "the bank was down"}, claim))
		w.awaitsDeadLetter(operator, 6) // with the operator's own two
		must(t, operator.ResolveNotExecuted(t.Context(), reconcile.By{Who: "zoe", Why: "the bank says no"}, claim))
		w.provider.ClearFaults()
		if r := shop.settles("/payments", "k", payment); r.status != http.StatusCreated || w.charges("k") != 1 {
			t.Errorf("the retry got %+v, and there are %d charges", r, w.charges("k"))
		}
		history, err := operator.History(t.Context(), letter.ID)
		must(t, err)
		var acts []string
		for _, e := range history.Audit {
			acts = append(acts, strings.TrimSpace(e.Actor+": "+e.Action+", "+e.Reason+" "+e.Outcome))
		}
		asked := func(n string) string {
			return "reconciler: reconcile attempt " + n + ", the handler reported that the outcome is unknown " +
				"the other system does not know of it, which proves nothing: the request may still arrive|"
		}
		want := asked("1") + asked("2") + "zoe: retry now, the bank was down|zoe: retry now, the bank was down done|" +
			asked("1") + asked("2") + "zoe: resolve not executed, the bank says no|zoe: resolve not executed, the bank says no done"
		if got := strings.Join(acts, "|"); got != want {
			t.Errorf("the audit says %s, want %s", got, want)
		}
	})
}

// awaitsDeadLetter waits until the poller has given up and has written its last attempt, which it does behind that, to
// the audit.
func (w *world) awaitsDeadLetter(operator *reconcile.Operator, audited int) (letter store.Record) {
	w.Helper()
	await.That(w, "there is a dead letter", func() bool {
		letters, err := operator.DeadLetters(w.Context(), store.ID{}, 10)
		must(w, err)
		if len(letters) != 1 {
			return false
		}
		letter = letters[0]
		history, err := operator.History(w.Context(), letter.ID)
		must(w, err)
		return len(history.Audit) >= audited
	})
	return letter
}

// TestStillOnItsWay: "not found" while the request is still on its way does not lead to a second charge (scenario 31).
func TestStillOnItsWay(t *testing.T) {
	t.Parallel()
	for name, dedup := range map[string]bool{"a provider that recognises the key": true, "a provider that does not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onStores(t, dedup, func(t *testing.T, w *world) {
				w.fault(provider.Hold) // the first request is held on its way, whatever its client does
				way, err := servers.StartTCPProxy(strings.TrimPrefix(w.provider.URL, "http://"))
				must(t, err)
				t.Cleanup(func() { _ = way.Close() })
				shop := w.opens(func(s *shopSettings) { s.Poll, s.Provider = true, "http://"+way.Addr() })
				go func() { // the shop loses its connection once the provider has the request
					if w.provider.Await(t.Context(), string(provider.Hold), 1) == nil {
						way.DropAll()
					}
				}()
				w.becomesUnknown(shop, "k")
				if dedup {
					// Not found means not executed here: the retry is the same charge to the provider.
					shop.settles("/payments", "k", payment)
				} else {
					w.awaitsQuestions("k")
					w.retryIsRefused(shop, "k")
				}
				w.provider.Release(string(provider.Hold))
				shop.settles("/payments", "k", payment)
				w.wantReplay(shop, "k")
			})
		})
	}
}
