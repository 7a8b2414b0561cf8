package outboxcrash

import (
	"path/filepath"
	"testing"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/outbox"
)

// TestWorkerDiesAfterTheCharge: the provider has made the charge, and the worker is killed before it can record that
// (scenario 26). The next worker calls the provider again, under the same key: the ledger has one charge.
func TestWorkerDiesAfterTheCharge(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, w *world) {
		ledger := filepath.Join(t.TempDir(), "ledger")
		bank, err := provider.Start(t.Context(), provider.Config{LedgerPath: ledger, Dedup: true})
		must(t, err)
		t.Cleanup(func() { _ = bank.Close() })
		must(t, w.adds(t.Context(), "charge", "order-1", false))

		first, err := w.starts(workerSettings{Provider: bank.URL, DieAfterCharge: true})
		must(t, err)
		if err := first.Wait(await.Limit); err == nil || first.ExitCode() != -1 {
			t.Fatalf("the worker ended with %v, want it to be killed", err)
		}
		if charges := chargesIn(t, ledger); charges != 1 {
			t.Fatalf("%d charges when the worker died, want one", charges)
		}
		entry := w.message(outbox.Filter{Topic: "charge"})
		if entry.State == outbox.StateDone || entry.ProviderID != "" {
			t.Fatalf("the message is %s with provider id %q when the worker has died, want nothing recorded", entry.State, entry.ProviderID)
		}

		second, err := w.starts(workerSettings{Provider: bank.URL})
		must(t, err)
		await.That(t, "the charge is recorded", func() bool {
			entry = w.message(outbox.Filter{Topic: "charge"})
			return entry.State == outbox.StateDone
		})
		must(t, second.End(await.Limit))
		if charges := chargesIn(t, ledger); charges != 1 {
			t.Errorf("%d charges in the provider's ledger, want one", charges)
		}
		if entry.Attempts < 2 || entry.ProviderID == "" {
			t.Errorf("the message was tried %d times and has provider id %q, want a second attempt and the id of the charge", entry.Attempts, entry.ProviderID)
		}
	})
}

func chargesIn(t testing.TB, path string) int {
	t.Helper()
	ledger, err := provider.ReadLedger(path)
	must(t, err)
	return len(ledger.Charges("order-1"))
}

// message is the only one that a filter chooses.
func (w *world) message(f outbox.Filter) outbox.Entry {
	w.Helper()
	entries, err := w.store.Messages(w.Context(), f)
	must(w, err)
	if len(entries) != 1 {
		w.Fatalf("%d messages, want one", len(entries))
	}
	return entries[0]
}
