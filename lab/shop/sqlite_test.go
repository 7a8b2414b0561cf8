package shop_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/shop"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// openSQLite opens a store in a directory of the test's own, with the table of payments.
func openSQLite(t *testing.T, options ...sqlite.Option) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	err = s.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.Exec(`CREATE TABLE payment (amount INTEGER NOT NULL)`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestPayByItself calls the handler without a guard, in a transaction that is undone.
func TestPayByItself(t *testing.T) {
	undo := errors.New("undone")
	err := openSQLite(t).Update(t.Context(), func(tx *sql.Tx) error {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount": 1200}`))
		w := httptest.NewRecorder()
		shop.Pay(w, r.WithContext(store.ContextWithTx(t.Context(), tx)))

		var paid int
		if err := tx.QueryRow(`SELECT sum(amount) FROM payment`).Scan(&paid); err != nil {
			return err
		}
		want(t, "the answer and what was paid", fmt.Sprint(w.Code, paid), "201 1200")
		return undo
	})
	if !errors.Is(err, undo) {
		t.Error(err)
	}
}

func TestPaymentsOnSQLite(t *testing.T) {
	now := time.Now()
	s := openSQLite(t, sqlite.WithClock(func() time.Time { return now }))
	fails := true
	h := service(t, s, "POST /payments", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shop.Pay(w, r)
		if fails {
			panic(http.ErrAbortHandler) // behind the write: a crash leaves the same, which is nothing
		}
	}), onceward.Transactional())
	func() {
		defer func() { _ = recover() }() // in the program net/http does that
		post(h, "/payments", "key-1", `{"amount": 1200}`)
	}()
	fails = false
	want(t, "the retry after a crash", post(h, "/payments", "key-1", `{"amount": 1200}`), "201")
	want(t, "one more", post(h, "/payments", "key-1", `{"amount": 1200.0}`), "201 again")
	want(t, "another amount", post(h, "/payments", "key-1", `{"amount": 1300}`), "422 mismatch")
	want(t, "no amount", post(h, "/payments", "key-2", `{"amount": 0}`), "422")
	want(t, "the corrected request", post(h, "/payments", "key-2", `{"amount": 100}`), "201")
	now = now.Add(25 * time.Hour)
	want(t, "after a day", post(h, "/payments", "key-1", `{"amount": 1300}`), "201")

	var payments, paid int
	if err := s.DB().QueryRow(`SELECT count(*), sum(amount) FROM payment`).Scan(&payments, &paid); err != nil {
		t.Fatal(err)
	}
	want(t, "what was paid", fmt.Sprint(payments, paid), "3 2600")
}
