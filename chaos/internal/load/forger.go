package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/chaos/internal/history"
	"github.com/onceward/onceward/chaos/internal/node"
	"github.com/onceward/onceward/internal/provider"
)

// forgeries is the part of the rounds of refunds after which a webhook is forged.
const forgeries = 0.3

// forge sends a webhook that the provider did not: that the refund was made. The forger knows all about it but the
// secret.
func (l *Load) forge(ctx context.Context, random *rand.Rand, op *operation) {
	if op.kind != "refund" || random.Float64() > forgeries {
		return
	}
	id := onceward.ID{Scope: op.scope(), Key: op.key}
	key, err := node.RefundKey(ctx, id)
	if err != nil {
		return // the run is over
	}
	made := provider.Refund{
		ID: "re_forged" + op.key, Status: provider.Succeeded, IdempotencyKey: key, Created: time.Now(),
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
	how, signature := l.signature(random, body)
	f := history.Forgery{Scope: id.Scope, Key: id.Key, How: how}
	f.Status = l.deliver(ctx, l.Fronts[random.IntN(len(l.Fronts))], signature, body)
	l.keep(l.Recorder.AddForgery(f))
}

// signature is one that must not be accepted, and what is wrong with it.
func (l *Load) signature(random *rand.Rand, body []byte) (how, value string) {
	switch random.IntN(3) {
	case 0:
		return "without a signature", ""
	case 1:
		return "signed with another secret", provider.Sign("the secret of somebody else", time.Now(), body)
	default:
		return "with the signature of another body", provider.Sign(node.WebhookSecret, time.Now(), append(body, ' '))
	}
}

// deliver sends a webhook and returns the status of the answer, 0 if there is none.
func (l *Load) deliver(ctx context.Context, front, signature string, body []byte) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, front+"/events", bytes.NewReader(body))
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
