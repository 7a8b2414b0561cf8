package dynamodb_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/dynamodb"
)

// TestShardsGrow: another node opens the table with more parts while this one runs, and then goes away. What it has
// left is swept and listed here too, or its unknown outcomes would never end (I13).
func TestShardsGrow(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	few := open(t, where, dynamodb.WithShards(1))
	many := open(t, where, dynamodb.WithShards(64))
	for i := range 20 {
		c := claimOf(reserve(t, many, request(fmt.Sprint(i)), store.DecisionExecute))
		if i%2 == 0 {
			must(t, many.Abandon(t.Context(), c, "timeout"))
		}
	}
	few.SetClock(func() time.Time { return time.Now().Add(time.Hour) })
	found, err := few.List(t.Context(), store.Filter{State: store.StateUnknown})
	if err != nil || len(found) != 10 {
		t.Errorf("I13: %d unknown outcomes are listed (%v), want 10", len(found), err)
	}
	if swept, err := few.Sweep(t.Context(), 100); swept != 10 || err != nil {
		t.Errorf("I13: %d records were swept (%v), want 10", swept, err)
	}
}

// TestListAcrossShardCounts: records that were written when the index had other parts are listed page by page, each
// once, also if those of a page are settled before the next one is asked for.
func TestListAcrossShardCounts(t *testing.T) {
	t.Parallel()
	for _, settle := range []bool{false, true} {
		where := newURL(t)
		before := open(t, where, dynamodb.WithShards(16))
		for i := range 60 {
			c := claimOf(reserve(t, before, request(fmt.Sprint(i)), store.DecisionExecute))
			must(t, before.Abandon(t.Context(), c, "timeout"))
		}
		s := open(t, where, dynamodb.WithShards(61))
		seen := make(map[store.ID]int)
		f := store.Filter{State: store.StateUnknown, Limit: 3}
		for pages := 0; ; pages++ {
			page, err := s.List(t.Context(), f)
			must(t, err)
			if len(page) == 0 || pages > 60 {
				break
			}
			for _, rec := range page {
				seen[rec.ID]++
				if settle {
					must(t, s.ResolveNotExecuted(t.Context(), store.Claim{ID: rec.ID, Attempt: rec.Attempt}, "not there"))
				}
			}
			f.After = page[len(page)-1].ID
		}
		twice := 0
		for _, n := range seen {
			if n > 1 {
				twice++
			}
		}
		if len(seen) != 60 || twice > 0 {
			t.Errorf("settled meanwhile %t: %d of 60 records were listed, %d of them more than once", settle, len(seen), twice)
		}
	}
}
