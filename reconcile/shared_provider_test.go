package reconcile_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestASharedProviderIsNoticed: staging and production share an account and a secret. An effect that is older than the
// operation whose key it carries is logged once, unless the service has a namespace, which prevents such effects.
func TestASharedProviderIsNoticed(t *testing.T) {
	t.Parallel()
	ask := func(namespace string, ago time.Duration, subject func(key, derived string) string) string {
		var log strings.Builder
		s := memory.New()
		guard, err := onceward.New(s, onceward.Config{
			Secret: []byte("the secret of both"), Namespace: namespace, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		must(t, err)
		var heard atomic.Int64
		poller, err := reconcile.NewPoller(guard, s, reconcile.Config{Logger: quiet, DefaultRule: &reconcile.Rule{
			Source: "bank", Steps: []string{"transfer"},
			Interpret: func(context.Context, *store.Record, []store.ExternalEvent) (reconcile.Answer, error) {
				heard.Add(1)
				return reconcile.Completed(paid, "ch_1"), nil
			},
		}})
		must(t, err)
		for _, key := range []string{"one", "two"} {
			_, err := guard.Do(t.Context(), onceward.Call{Scope: "tenant", Key: key, Operation: transfers},
				func(ctx context.Context) ([]byte, error) {
					op := onceward.FromContext(ctx)
					must(t, op.Checkpoint(store.Checkpoint{Point: "called", ProviderID: "ch_" + key}))
					_, err := s.AddExternalEvent(ctx, store.ExternalEvent{
						Source: "bank", Scope: "tenant", EventID: key, At: time.Now().Add(-ago),
						Subject: subject(key, op.DownstreamKey("transfer")),
					})
					op.Unknown()
					return nil, err
				}, onceward.Reserved(onceward.FailureUnknown))
			if err == nil {
				t.Fatal("the outcome is not unknown")
			}
		}
		_, err = poller.RunOnce(t.Context())
		must(t, err)
		if n := heard.Load(); n != 2 {
			t.Errorf("the events of %d operations were heard, want 2", n)
		}
		return log.String()
	}
	same := func(_, derived string) string { return derived }
	if told := ask("", time.Hour, same); strings.Count(told, "Config.Namespace is empty") != 1 ||
		!strings.Contains(told, "happened before it") {
		t.Errorf("B6: an effect of another service is told as %q, want one warning", told)
	}
	for name, told := range map[string]string{
		"with a namespace":       ask("staging", time.Hour, same),
		"of the operation":       ask("", 0, same),
		"by a clock that is off": ask("", time.Minute, same),
		"of the provider's id":   ask("", time.Hour, func(key, _ string) string { return "ch_" + key }),
	} {
		if strings.Contains(told, "Namespace") {
			t.Errorf("B6: an effect %s is told as another service's: %s", name, told)
		}
	}
}
