package stores_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ncruces/go-sqlite3/driver"

	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/storetest"
)

// rowMutantVariable holds the promise that the store of a process of TestSuiteOfRows breaks.
const rowMutantVariable = "ONCEWARD_STORES_ROW_MUTANT"

// TestSuiteOfRows shows that the suite of store/storetest passes a store that writes rows as it promises, and fails
// those that break a promise. Each is run in a process of its own. The test is not in that module, which then needs no
// database.
func TestSuiteOfRows(t *testing.T) {
	t.Parallel()
	if broken := os.Getenv(rowMutantVariable); broken != "" {
		storetest.Run(t, storetest.Harness{
			Features: storetest.Features{ConcurrentTx: true}, Groups: []string{"Natural"},
			Open: func(t testing.TB) storetest.Instance { return storetest.Instance{Store: newRowReference(t, broken)} },
		})
		return
	}
	for _, broken := range []string{
		"nothing", "what is kept is overwritten", "an update is said to be an insert", "a null is final",
		"names are not quoted", "a lock is none",
	} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			run := proctest.Run(t, proc.Self(rowMutantVariable, broken, "-test.v", "-test.run=^TestSuiteOfRows$"))
			output := run.Stdout + run.Stderr
			failed := strings.Contains(output, "--- FAIL: TestSuiteOfRows/conformance/Natural/")
			passed := strings.Contains(output, "--- PASS: TestSuiteOfRows/conformance/Natural/")
			if honest := broken == "nothing"; !passed && !failed || failed == honest || (run.Code == 0) != honest ||
				strings.Contains(output, "DATA RACE") {
				t.Errorf("the process ended with code %d:\n%s", run.Code, output)
			}
		})
	}
}

// rowReference writes rows in a real database, which is what it takes to show that names are quoted and nulls compared.
// Transactions can be under way at once as long as only one of them writes, so it takes a lock of its own for that.
type rowReference struct {
	*memory.Store
	db *sql.DB
	// broken names the promise that this store breaks, if there is one of that name.
	broken string

	mu       sync.Mutex
	locks    map[string]*sql.Tx
	unlocked *sync.Cond
}

func newRowReference(t testing.TB, broken string) *rowReference {
	t.Helper()
	db, err := driver.Open("file:" + filepath.ToSlash(filepath.Join(t.TempDir(), "rows.db")) + "?_pragma=journal_mode(wal)&_pragma=busy_timeout(60000)&_pragma=synchronous(off)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &rowReference{Store: memory.New(), db: db, broken: broken, locks: make(map[string]*sql.Tx)}
	r.unlocked = sync.NewCond(&r.mu)
	return r
}

// InTx runs work in a transaction.
func (r *rowReference) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		_ = tx.Rollback() // which does nothing after a commit
		r.mu.Lock()
		defer r.mu.Unlock()
		for name, owner := range r.locks {
			if owner == tx {
				delete(r.locks, name)
			}
		}
		r.unlocked.Broadcast()
	}()
	if err := work(store.ContextWithTx(ctx, tx)); err != nil {
		return err
	}
	return tx.Commit()
}

// LockName implements [natural.Store].
func (r *rowReference) LockName(_ context.Context, t *sql.Tx, name string) error {
	if t == nil {
		return errors.New("no transaction")
	}
	if r.broken != "a lock is none" {
		r.lock(t, "name "+name)
	}
	return nil
}

func (r *rowReference) lock(t *sql.Tx, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.locks[name] != nil && r.locks[name] != t {
		r.unlocked.Wait()
	}
	r.locks[name] = t
}

// UpsertRow implements [natural.Store].
func (r *rowReference) UpsertRow(ctx context.Context, t *sql.Tx, u natural.Upsert) (natural.Outcome, error) {
	if t == nil {
		return 0, errors.New("no transaction")
	}
	if err := u.Check(); err != nil {
		return 0, err
	}
	r.lock(t, "writer")
	final, there, err := r.final(ctx, t, u)
	if err != nil {
		return 0, err
	}
	if final && r.broken != "what is kept is overwritten" {
		return natural.OutcomeKept, nil
	}
	if err := r.write(ctx, t, u); err != nil {
		return 0, err
	}
	switch {
	case final:
		return natural.OutcomeKept, nil
	case there && r.broken != "an update is said to be an insert":
		return natural.OutcomeUpdated, nil
	default:
		return natural.OutcomeInserted, nil
	}
}

// final looks for the row, and whether it is final.
func (r *rowReference) final(ctx context.Context, tx *sql.Tx, u natural.Upsert) (final, there bool, err error) {
	var conditions []string
	var args []any
	for _, c := range u.Key {
		conditions = append(conditions, r.quote(c.Name)+" = ?")
		args = append(args, c.Value)
	}
	state := "NULL"
	if u.Final != "" {
		state = r.quote(u.Final)
	}
	var value any
	query := fmt.Sprintf("SELECT %s FROM %s WHERE %s", state, r.quote(u.Table), strings.Join(conditions, " AND "))
	err = tx.QueryRowContext(ctx, query, args...).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return false, false, nil
	}
	if value == nil {
		return r.broken == "a null is final", true, err
	}
	return slices.ContainsFunc(u.FinalValues, func(v any) bool { return fmt.Sprint(v) == fmt.Sprint(value) }), true, err
}

// write inserts the row or updates it.
func (r *rowReference) write(ctx context.Context, tx *sql.Tx, u natural.Upsert) error {
	var names, marks, keys, sets []string
	var args []any
	for _, c := range slices.Concat(u.Key, u.Values) {
		names, marks, args = append(names, r.quote(c.Name)), append(marks, "?"), append(args, c.Value)
	}
	for _, c := range u.Key {
		keys = append(keys, r.quote(c.Name))
	}
	for _, c := range u.Values {
		sets = append(sets, fmt.Sprintf("%[1]s = excluded.%[1]s", r.quote(c.Name)))
	}
	conflict := "NOTHING"
	if len(sets) > 0 {
		conflict = "UPDATE SET " + strings.Join(sets, ", ")
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s) ON CONFLICT (%s) DO %s",
		r.quote(u.Table), strings.Join(names, ", "), strings.Join(marks, ", "), strings.Join(keys, ", "), conflict), args...)
	return err
}

func (r *rowReference) quote(name string) string {
	if r.broken == "names are not quoted" {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}
