package world

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/storeurl"
)

// TestHarvestKeepsLateStrays: a stray row that may have come too late is in its table, where comparisons find it, and
// so it is in the history, too.
func TestHarvestKeepsLateStrays(t *testing.T) {
	t.Parallel()
	db, err := storeurl.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // it was only read
	for _, statement := range []string{
		`CREATE TABLE payment (id TEXT, reference TEXT, state TEXT)`,
		`CREATE TABLE booking (id TEXT, reference TEXT, state TEXT, item TEXT)`,
		`CREATE TABLE entry (id TEXT, reference TEXT)`,
		`CREATE TABLE refund (id TEXT, reference TEXT)`,
		`INSERT INTO refund VALUES ('re_1', 'w-stray-1'), ('re_2', 'w-stray-2'), ('re_3', 'w-asked')`,
	} {
		err := db.InTx(t.Context(), func(ctx context.Context) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, statement)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	w := &World{window: "w-", late: map[string]bool{"re_2": true}}
	var run history.Run
	if err := w.harvestRows(t.Context(), db, &run, nil); err != nil {
		t.Fatal(err)
	}
	want := []history.Row{
		{Table: "refund", ID: "re_1", Reference: "w-stray-1", Stray: true},
		{Table: "refund", ID: "re_2", Reference: "w-stray-2", Stray: true, Late: true},
		{Table: "refund", ID: "re_3", Reference: "w-asked"},
	}
	if !slices.Equal(run.Rows, want) {
		t.Errorf("got  %+v\nwant %+v", run.Rows, want)
	}
}
