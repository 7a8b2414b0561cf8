package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/lab/chaos/internal/node"
	"github.com/onceward/onceward/store"
)

// forgeries is the part of the rounds of refunds after which a webhook is forged: of those that have no answer yet, and
// of the others.
const (
	forgeries     = 0.6
	lateForgeries = 0.2
)

// forge sends a webhook that the provider did not: that the refund was made. The forger knows all about it but the
// secret.
func (l *Load) forge(ctx context.Context, random *rand.Rand, op *operation) {
	rate := forgeries
	if op.answered() {
		rate = lateForgeries
	}
	if op.kind != "refund" || random.Float64() > rate {
		return
	}
	id := store.ID{Scope: op.scope(), Key: op.key}
	key, err := node.RefundKey(ctx, id)
	if err != nil {
		return // the run is over
	}
	made := provider.Refund{
		ID: "re_forged_" + op.requests[0].reference, Status: provider.Succeeded, IdempotencyKey: key, Created: time.Now(),
		RefundRequest: provider.RefundRequest{
			Charge: op.charge, Amount: op.requests[0].amount,
			Reference: op.requests[0].reference,
		},
	}
	body, err := json.Marshal(provider.Event{
		ID: fmt.Sprintf("evt_forged_%s_%d", op.key, op.asked), Type: provider.EventRefunded, Created: made.Created,
		Data: provider.EventData{Refund: &made},
	})
	if err != nil {
		panic(err) // strings and numbers can always be encoded
	}
	sent := sign(random, id.Scope, body)
	f := history.Forgery{Scope: id.Scope, Key: id.Key, How: sent.how, Foreign: sent.foreign, Claims: made.ID}
	f.Status = l.deliver(ctx, l.Fronts[random.IntN(len(l.Fronts))]+sent.path, sent.signature, body)
	if f.Foreign && f.Status == http.StatusNoContent {
		l.Foreign.Add(1)
	}
	l.keep(l.Recorder.AddForgery(f))
}

// signed is where a webhook is sent, its signature, and what is wrong with it. A foreign one is signed as it should be,
// by an account that has nothing to say about the refund.
type signed struct {
	path, signature, how string
	foreign              bool
}

// sign signs a webhook about an operation of a scope in a way that must not settle anything.
func sign(random *rand.Rand, scope string, body []byte) signed {
	s := signed{path: "/events"}
	switch random.IntN(5) {
	case 0:
		s.how = "without a signature"
	case 1:
		s.how, s.signature = "signed with another secret", provider.Sign("the secret of another service", time.Now(), body)
	case 2:
		s.how = "with the signature of another body"
		s.signature = provider.Sign(node.WebhookSecret, time.Now(), append(body, ' '))
	default:
		sender := other(scope)
		s.how, s.foreign = "signed by "+sender, true
		s.path, s.signature = "/events/"+sender, provider.Sign(node.TenantSecret(sender), time.Now(), body)
	}
	return s
}

// other is an account that is not the one of that name.
func other(account string) string {
	for _, token := range tokens {
		if node.Tokens[token] != account {
			return node.Tokens[token]
		}
	}
	panic("load: there is one account only")
}

// deliver sends a webhook and returns the status of the answer, 0 if there is none.
func (l *Load) deliver(ctx context.Context, url, signature string, body []byte) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0
	}
	request.Header.Set("Content-Type", "application/json")
	if signature != "" {
		request.Header.Set(provider.SignatureHeader, signature)
	}
	response, err := l.http.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}
