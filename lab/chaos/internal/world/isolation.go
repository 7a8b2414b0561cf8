package world

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/chaos/internal/node"
)

// nodeURL is what a node opens. It makes the level of the run the default of the pool whose connections run
// transactions, so that all transactional routes, steps and inboxes run at that level.
func (w *World) nodeURL() string {
	url := w.database.url()
	if w.Isolation == sql.LevelDefault {
		return url
	}
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	level := strings.ToLower(w.Isolation.String())
	if !strings.HasPrefix(url, "postgres") {
		return url + separator + "tx_isolation='" + strings.ReplaceAll(level, " ", "-") + "'"
	}
	return url + separator + "default_transaction_isolation=" + strings.ReplaceAll(level, " ", "%20")
}

// checkIsolation refuses a run whose transactions are not at the level of the run.
func (w *World) checkIsolation(ctx context.Context) error {
	if w.Isolation == sql.LevelDefault {
		return nil
	}
	ask := map[string]string{
		"postgres": `SELECT current_setting('transaction_isolation')`, Patroni: `SELECT current_setting('transaction_isolation')`,
		"mysql": `SELECT @@tx_isolation`, Galera: `SELECT @@tx_isolation`,
	}[w.Store]
	if ask == "" {
		return fmt.Errorf("%s has no levels of isolation", w.Store)
	}
	db, err := node.Open(ctx, w.nodeURL(), 0)
	if err != nil {
		return err
	}
	defer db.Close()
	var level string
	if err := db.InTx(ctx, func(ctx context.Context) error {
		return onceward.Tx(ctx).QueryRowContext(ctx, ask).Scan(&level)
	}); err != nil {
		return err
	}
	if !strings.EqualFold(strings.ReplaceAll(level, "-", " "), w.Isolation.String()) {
		return fmt.Errorf("the transactions of nodes run at %s instead of %s", level, w.Isolation)
	}
	return nil
}
