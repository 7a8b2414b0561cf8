package storeurl_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
)

// TestOneHandler: the same statements make, write and read tables of the application on every database.
func TestOneHandler(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]func(t *testing.T) string{
		"sqlite":   func(t *testing.T) string { return filepath.Join(t.TempDir(), "store.db") },
		"postgres": func(t *testing.T) string { return servers.Postgres(t).SchemaURL(t) },
		"mysql":    func(t *testing.T) string { return servers.MariaDB(t).DatabaseURL(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, address(t))
			var starts sync.WaitGroup
			for range 4 { // processes that start at one time
				starts.Go(func() {
					err := db.Define(t.Context(),
						`CREATE TABLE IF NOT EXISTS note (id VARCHAR(64) PRIMARY KEY, text VARCHAR(64) NOT NULL)`)
					if err != nil {
						t.Errorf("define: %v", err)
					}
				})
			}
			starts.Wait()
			exec(t, db, db.Bind(`INSERT INTO note (id, text) VALUES ($1, $2)`), "a", "$1")
			for range 2 { // the second one changes nothing, and still finds its row
				err := db.InTx(t.Context(), func(ctx context.Context) error {
					result, err := onceward.Tx(ctx).ExecContext(ctx, db.Bind(`UPDATE note SET text = $1 WHERE id = $2`), "b", "a")
					if err != nil {
						return err
					}
					if n, err := result.RowsAffected(); n != 1 || err != nil {
						t.Errorf("%d rows are affected (%v), want 1", n, err)
					}
					for column, want := range map[string]bool{"text": true, "absent": false} {
						if has, err := db.HasColumn(ctx, onceward.Tx(ctx), "note", column); has != want || err != nil {
							t.Errorf("the column %s: %t, %v", column, has, err)
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if n := count(t, db); n != 1 {
				t.Errorf("there are %d notes, want one", n)
			}
		})
	}
}
