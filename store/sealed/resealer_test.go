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

// TestHalfOfARecord: what opens of a record is resealed, also if the rest does not; that stays as it is, and its key is
// needed.
func TestHalfOfARecord(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]struct{ data, answer uint32 }{
		"the answer opens": {data: 3, answer: 1}, "the data opens": {data: 1, answer: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inside := memory.New()
			c := reserve(t, inside)
			carried := store.Checkpoint{Point: "charged", Data: []byte("carried")}
			must(t, open(t, inside, ring(keys.data)).Checkpoint(t.Context(), c, carried))
			_, err := open(t, inside, ring(keys.answer)).Complete(t.Context(), c, &store.Completion{Response: testAnswer})
			must(t, err)
			before, err := inside.Get(t.Context(), testID)
			must(t, err)
			for run, resealed := range []int{1, 0} {
				report := reseal(t, open(t, inside, ring(2, 1)))
				if report.Resealed != resealed || report.Unreadable != 1 || report.NeedsKey(1) || !report.NeedsKey(3) ||
					report.InUse[2].Records != 1 || report.InUse[3].Records != 1 {
					t.Errorf("run %d reports %+v", run, report)
				}
			}
			after, err := inside.Get(t.Context(), testID)
			must(t, err)
			sameAnswer, sameData := after.Response.Equal(&before.Response), string(after.Data) == string(before.Data)
			if sameAnswer != (keys.answer == 3) || sameData != (keys.data == 3) {
				t.Errorf("the answer is as it was: %t, the data: %t", sameAnswer, sameData)
			}
			v, err := open(t, inside, ring(2)).Reserve(t.Context(), reservation())
			if keys.answer == 1 && (err != nil || !v.Record.Response.Equal(&testAnswer)) {
				t.Errorf("the answer is not replayed when the old key is gone: %s, %v", v.Decision, err)
			}
			if rec, err := open(t, inside, ring(2, 3)).Get(t.Context(), testID); err != nil ||
				!rec.Response.Equal(&testAnswer) || string(rec.Data) != "carried" {
				t.Errorf("with both keys the record is %+v, %v", rec, err)
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
