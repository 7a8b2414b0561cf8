package reconcile_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func keysOf(records []store.Record) (keys []string) {
	for _, rec := range records {
		keys = append(keys, rec.Key)
	}
	slices.Sort(keys)
	return keys
}

func TestDeadLetters(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		operator := newOperator(t, s)
		for i := range 7 {
			claim := lose(t, s, fmt.Sprint("k", i))
			if i%2 == 0 {
				giveUp(t, s, claim)
			}
		}
		settled := lose(t, s, "settled")
		giveUp(t, s, settled)
		must(t, operator.ResolveNotExecuted(t.Context(), zoe, settled))

		all, err := operator.DeadLetters(t.Context(), store.ID{}, 0)
		must(t, err)
		if got, want := keysOf(all), []string{"k0", "k2", "k4", "k6"}; !slices.Equal(got, want) || all[0].ReconcileError != "gave up" {
			t.Errorf("dead letters are %s, want %s with their reason", got, want)
		}
		var paged []string
		for page, after := 0, (store.ID{}); page < 3; page++ {
			letters, err := operator.DeadLetters(t.Context(), after, 3)
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
		s := memory.New()
		operator := newOperator(t, s)
		lose(t, s, "unknown")
		start(t, s, transfers, "running")
		must(t, operator.ResolveCompleted(t.Context(), zoe, lose(t, s, "done"), store.Completion{Response: paid, ProviderID: "ch_1"}))
		steps := []string{"transfer", "notify"}
		for name, c := range map[string]struct {
			query reconcile.Query
			want  []string
		}{
			"by provider's id":                {reconcile.Query{Subject: "ch_1"}, []string{"done"}},
			"by provider's id, in its state":  {reconcile.Query{Subject: "ch_1", State: store.StateCompleted}, []string{"done"}},
			"by provider's id, in another":    {reconcile.Query{Subject: "ch_1", State: store.StateUnknown}, nil},
			"by downstream key":               {reconcile.Query{Subject: downstreamKey("unknown", "transfer"), Steps: steps}, []string{"unknown"}},
			"by that of another step":         {reconcile.Query{Subject: downstreamKey("running", "notify"), Steps: steps}, []string{"running"}},
			"by that of a step not named":     {reconcile.Query{Subject: downstreamKey("unknown", "refund"), Steps: steps}, nil},
			"by downstream key without steps": {reconcile.Query{Subject: downstreamKey("unknown", "transfer")}, nil},
			"by what nobody has":              {reconcile.Query{Subject: "ch_2", Steps: steps}, nil},
			"by nothing":                      {reconcile.Query{Steps: steps}, nil},
		} {
			found, err := operator.Find(t.Context(), c.query)
			if err != nil || !slices.Equal(keysOf(found), c.want) {
				t.Errorf("%s: found %s, %v, want %s", name, keysOf(found), err, c.want)
			}
		}
		for i := range 20 {
			must(t, operator.ResolveCompleted(t.Context(), zoe, lose(t, s, fmt.Sprint("k", i)), store.Completion{Response: paid, ProviderID: "same"}))
		}
		if found, err := operator.Find(t.Context(), reconcile.Query{Subject: "same"}); err != nil || len(found) != 10 {
			t.Errorf("of 20 were found %d, %v, want 10", len(found), err)
		}
	})
}
