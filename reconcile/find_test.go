package reconcile_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store/memory"
)

func keysOf(records []onceward.Record) (keys []string) {
	for _, rec := range records {
		keys = append(keys, rec.Key)
	}
	slices.Sort(keys)
	return keys
}

func TestDeadLetters(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		desk := newDesk(t, store)
		for i := range 7 {
			claim := lose(t, store, fmt.Sprint("k", i))
			if i%2 == 0 {
				giveUp(t, store, claim)
			}
		}
		settled := lose(t, store, "settled")
		giveUp(t, store, settled)
		must(t, desk.ResolveNotExecuted(t.Context(), zoe, settled))

		all, err := desk.DeadLetters(t.Context(), onceward.ID{}, 0)
		must(t, err)
		if got, want := keysOf(all), []string{"k0", "k2", "k4", "k6"}; !slices.Equal(got, want) || all[0].ReconcileError != "gave up" {
			t.Errorf("dead letters are %s, want %s with their reason", got, want)
		}
		var paged []string
		for page, after := 0, (onceward.ID{}); page < 3; page++ {
			letters, err := desk.DeadLetters(t.Context(), after, 3)
			must(t, err)
			if want := []int{3, 1, 0}[page]; len(letters) != want {
				t.Errorf("page %d has %s, want %d", page, keysOf(letters), want)
			}
			for _, rec := range letters {
				paged, after = append(paged, rec.Key), rec.ID
			}
		}
		slices.Sort(paged)
		if !slices.Equal(paged, keysOf(all)) {
			t.Errorf("on all pages are %s", paged)
		}
	})
}

func TestFind(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		desk := newDesk(t, store)
		lose(t, store, "unknown")
		start(t, store, transfers, "running")
		must(t, desk.ResolveCompleted(t.Context(), zoe, lose(t, store, "done"), onceward.Completion{Response: paid, ProviderID: "ch_1"}))
		key := func(of, step string) string { return onceward.DownstreamKey(idOf(of), step) }
		steps := []string{"transfer", "notify"}
		for name, c := range map[string]struct {
			query reconcile.Query
			want  []string
		}{
			"by provider's id":                {reconcile.Query{Subject: "ch_1"}, []string{"done"}},
			"by provider's id, in its state":  {reconcile.Query{Subject: "ch_1", State: onceward.StateCompleted}, []string{"done"}},
			"by provider's id, in another":    {reconcile.Query{Subject: "ch_1", State: onceward.StateUnknown}, nil},
			"by downstream key":               {reconcile.Query{Subject: key("unknown", "transfer"), Steps: steps}, []string{"unknown"}},
			"by that of another step":         {reconcile.Query{Subject: key("running", "notify"), Steps: steps}, []string{"running"}},
			"by that of a step not named":     {reconcile.Query{Subject: key("unknown", "refund"), Steps: steps}, nil},
			"by downstream key without steps": {reconcile.Query{Subject: key("unknown", "transfer")}, nil},
			"by what nobody has":              {reconcile.Query{Subject: "ch_2", Steps: steps}, nil},
			"by nothing":                      {reconcile.Query{Steps: steps}, nil},
		} {
			found, err := desk.Find(t.Context(), c.query)
			if err != nil || !slices.Equal(keysOf(found), c.want) {
				t.Errorf("%s: found %s, %v, want %s", name, keysOf(found), err, c.want)
			}
		}
		for i := range 20 {
			must(t, desk.ResolveCompleted(t.Context(), zoe, lose(t, store, fmt.Sprint("k", i)), onceward.Completion{Response: paid, ProviderID: "same"}))
		}
		if found, err := desk.Find(t.Context(), reconcile.Query{Subject: "same"}); err != nil || len(found) != 10 {
			t.Errorf("of 20 were found %d, %v, want 10", len(found), err)
		}
	})
}
