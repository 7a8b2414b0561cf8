package mysql_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/onceward/onceward/store"
)

// TestAnswerLargerThanAPacket: an answer that the server does not take is not stored; that the operation is done is. A
// transaction is refused, with what it wrote: a repetition meets the same.
func TestAnswerLargerThanAPacket(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	exec(t, admin, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	large := strings.Repeat("x", number(t, admin, `SELECT @@max_allowed_packet`)+1)
	_, err := s.Complete(t.Context(), own(t, s, reservation("reserved")), answer(large))
	must(t, err)
	rec := wantState(t, s, "reserved", store.StateCompleted, "A4")
	if !rec.Response.NotStored || rec.Response.Status != 201 || len(rec.Response.Body) > 0 {
		t.Errorf("A4: the answer is stored with %d bytes: %t", len(rec.Response.Body), !rec.Response.NotStored)
	}
	sealed := answer(large)
	sealed.Response.Header = []store.HeaderField{{Name: store.SealedField, Value: "v"}}
	_, err = s.Complete(t.Context(), own(t, s, reservation("sealed")), sealed)
	must(t, err)
	rec = wantState(t, s, "sealed", store.StateCompleted, "A4")
	if !rec.Response.NotStored || rec.Response.IsSealed() {
		t.Errorf("A4: an answer without its body still has the header that is sealed with it: %v", rec.Response.Header)
	}
	_, err = s.Transact(t.Context(), reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
		must(t, insert(ctx, "key"))
		return settled(store.TxCommit, large)
	})
	if !errors.Is(err, store.ErrWorkRefused) || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("A4: a transaction with a large answer returned %v", err)
	}
	if n := number(t, admin, `SELECT COUNT(*) FROM business`); n != 0 {
		t.Errorf("I4: a transaction that was refused left %d rows", n)
	}
	wantWhole(t, s, admin, "key", err, "A4")
}
