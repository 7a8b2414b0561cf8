package sealed_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/sealed"
)

// TestKeyOfWhatIsNotSeen: as long as there is a record that the run could not look into, each key may be needed.
func TestKeyOfWhatIsNotSeen(t *testing.T) {
	t.Parallel()
	newer := func(rec *store.Record) { rec.Response.Header[0].Value = store.SealedPrefix + "\x02, a newer format" }
	for name, c := range map[string]struct {
		change func(rec *store.Record)
		want   bool
	}{
		"all is seen":              {func(*store.Record) {}, false},
		"a newer record":           {func(rec *store.Record) { *rec = store.Record{ID: rec.ID, State: rec.State} }, true},
		"an answer of a newer one": {newer, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inside := memory.New()
			completed(t, open(t, inside, ring(2)))
			held := &holding{Store: inside}
			var err error
			held.rec, err = inside.Get(t.Context(), testID)
			must(t, err)
			held.rec.Response.Header = append([]store.HeaderField(nil), held.rec.Response.Header...)
			c.change(&held.rec)
			report := reseal(t, open(t, held, ring(2, 1)))
			if report.NeedsKey(1) != c.want || (report.Unseen.Records > 0) != c.want || (report.Unreadable > 0) != c.want ||
				report.Plain != (sealed.Use{}) {
				t.Errorf("the run reports %+v, needs the old key %t", report, report.NeedsKey(1))
			}
		})
	}
}

// slow is a store that takes its time for each record.
type slow struct {
	*memory.Store
	each time.Duration
}

func (s *slow) Get(ctx context.Context, id store.ID) (store.Record, error) {
	select {
	case <-time.After(s.each):
		return s.Store.Get(ctx, id)
	case <-ctx.Done():
		return store.Record{}, ctx.Err()
	}
}

// TestSlowPage: a page may take longer than any one record: the time of a step of the store counts for each.
func TestSlowPage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := &slow{Store: memory.New(), each: 40 * time.Second}
		const records = 4
		for i := range records {
			_, err := open(t, inside, ring(1)).Reserve(t.Context(), reservation(func(r *store.Reservation) {
				r.Key = fmt.Sprint(i)
			}))
			must(t, err)
		}
		if report := reseal(t, open(t, inside, ring(2, 1))); report.Records != records {
			t.Errorf("the run reports %+v", report)
		}
	})
}
