package outboxcrash

import (
	"fmt"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/outbox"
)

// TestPoison: a message that cannot be delivered becomes a dead letter after its limit, and nothing else waits for it,
// except its own aggregate where strict order was asked for (scenario 27).
func TestPoison(t *testing.T) {
	t.Parallel()
	for name, strict := range map[string]bool{"strict": true, "not strict": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onStores(t, func(t *testing.T, w *world) { testPoison(t, w, strict) })
		})
	}
}

func testPoison(t *testing.T, w *world, strict bool) {
	r := w.receives(func(payload []byte) bool { return strings.Contains(string(payload), `"Account":"poison","Number":1,`) })
	for i := range 20 {
		must(t, w.adds(t.Context(), "http", "poison", false))
		must(t, w.adds(t.Context(), "http", fmt.Sprintf("account %d", i), false))
	}
	const limit = 4
	p, err := w.starts(workerSettings{HTTP: r.url(), Limit: limit, Strict: strict, Lease: 10 * await.Limit})
	must(t, err)
	want := 39
	if strict {
		want = 20
	}
	var letters []outbox.Entry
	await.That(t, "there is a dead letter, and all others are applied", func() bool {
		letters, err = w.store.Messages(t.Context(), outbox.Filter{States: []outbox.State{outbox.StateDead, outbox.StateHolding}})
		must(t, err)
		return len(letters) == 1 && w.number(`SELECT count(*) FROM applied`) >= want
	})
	if l := letters[0]; l.Attempts != limit || (l.State == outbox.StateHolding) != strict || !strings.Contains(l.LastError, "not this one") {
		t.Errorf("the dead letter is %s after %d attempts because of %q", l.State, l.Attempts, l.LastError)
	}
	left := 0
	if strict {
		left = 19 // of the strict aggregate
	}
	await.That(t, "all that can be done is recorded as done", func() bool {
		stats, err := w.store.MessageStats(t.Context())
		must(t, err)
		return stats.Waiting == left
	})
	if strict {
		must(t, w.store.DropMessage(t.Context(), letters[0].ID))
		await.That(t, "the rest of the aggregate is applied", func() bool { return w.number(`SELECT count(*) FROM applied`) == 39 })
	}
	must(t, p.End(await.Limit))
	_, applied := w.changes()
	for i, n := range applied["poison"] {
		if n != i+2 {
			t.Fatalf("changes %v were applied to the account of the poison, want 2 to 20 in order", applied["poison"])
		}
	}
}
