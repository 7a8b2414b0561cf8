package demo

import (
	"time"

	"github.com/onceward/onceward/examples/provider"
)

// providerFaults is what goes wrong at the provider and on the way there. The look-ups of the system are struck too. A timeout
// has no delay of its own: it ends when the system gives up.
func providerFaults(seed uint64) provider.Faults {
	return provider.Faults{Seed: seed, Rules: []provider.Rule{
		{Kind: provider.TimeoutBefore, Rate: 0.015},
		{Kind: provider.TimeoutAfter, Rate: 0.015},
		{Kind: provider.ResetBefore, Rate: 0.015},
		{Kind: provider.ResetAfter, Rate: 0.015},
		{Kind: provider.ErrorBefore, Rate: 0.015, Status: 503},
		{Kind: provider.ErrorBefore, Rate: 0.01, Status: 500},
		{Kind: provider.ErrorAfter, Rate: 0.015, Status: 502},
		{Kind: provider.Delay, Rate: 0.03, Delay: 100 * time.Millisecond},

		{Kind: provider.WebhookDuplicate, Rate: 0.05},
		{Kind: provider.WebhookDrop, Rate: 0.10},
		{Kind: provider.WebhookReordered, Rate: 0.05, Delay: 300 * time.Millisecond},
		{Kind: provider.WebhookDelay, Rate: 0.05, Delay: 300 * time.Millisecond},
		{Kind: provider.WebhookFirst, Rate: 0.03},
	}}
}
