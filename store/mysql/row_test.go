package mysql_test

import (
	"bytes"
	"errors"
	"strconv"
	"testing"

	"github.com/onceward/onceward/store"
)

// TestLargeContent: what is large comes back whole, and lists leave it on the disk.
func TestLargeContent(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	for _, size := range []int{0, 1, 4096, 4097, 1 << 20} {
		body := bytes.Repeat([]byte{0xff, 0, '\''}, size/3+1)[:size]
		key := strconv.Itoa(size)
		claim := own(t, s, reservation(key))
		must(t, s.Checkpoint(t.Context(), claim, store.Checkpoint{Point: "half", Data: []byte("data")}))
		_, err := s.Complete(t.Context(), claim, &store.Completion{Response: store.Response{Status: 201, Body: body}})
		must(t, err)
		rec := wantState(t, s, key, store.StateCompleted, key)
		if !bytes.Equal(rec.Response.Body, body) {
			t.Errorf("of %d bytes %d came back", size, len(rec.Response.Body))
		}
		if n := number(t, admin, `SELECT body_bytes FROM onceward_records WHERE hash = ?`, rec.ID.Hash()); n != size {
			t.Errorf("the view says that %d bytes are %d", size, n)
		}
		exec(t, admin, `UPDATE onceward_record SET content = NULL`)
		if found, err := s.FindHash(t.Context(), rec.ID.Hash()); err != nil || found.State != store.StateCompleted {
			t.Errorf("a look without the content of %d bytes found (%s, %v)", size, found.State, err)
		}
		if _, err := s.Get(t.Context(), rec.ID); size > 4096 && !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("a record whose content of %d bytes is gone: %v", size, err)
		}
	}
}

// TestDamagedFrame: a record that was cut off is reported, and is not taken for another one.
func TestDamagedFrame(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	claim := own(t, s, reservation("key"))
	_, err := s.Complete(t.Context(), claim, answer("body"))
	must(t, err)
	exec(t, admin, `CREATE TABLE kept AS SELECT record FROM onceward_record`)
	for _, damage := range []string{
		`''`, `LEFT(record, 10)`, `LEFT(record, 20)`, `LEFT(record, LENGTH(record) - 1)`, `CONCAT(record, 'x')`,
		`INSERT(record, 1, 4, x'ffffffff')`, `INSERT(record, 13, 4, x'ffffffff')`,
	} {
		exec(t, admin, `UPDATE onceward_record SET record = (SELECT `+damage+` FROM kept)`)
		if _, err := s.Get(t.Context(), idOf("key")); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%s: a look got %v", damage, err)
		}
		if v, err := s.Reserve(t.Context(), reservation("key")); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%s: a reservation got (%s, %v)", damage, v.Decision, err)
		}
		if v, err := s.Transact(t.Context(), reservation("key"), refusing(t, damage)); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%s: a transaction got (%s, %v)", damage, v.Decision, err)
		}
	}
}
