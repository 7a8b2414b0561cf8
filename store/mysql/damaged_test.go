package mysql_test

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// TestDamagedRowKeepsNobodyUp: a row of which not even the key can be read does not keep the others from being swept,
// listed or reaped. It is reported.
func TestDamagedRowKeepsNobodyUp(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	s.SetTime(firstMoment)
	for _, key := range []string{"a", "b", "damaged", "c", "d"} {
		own(t, s, reservation(key))
	}
	id := idOf("damaged")
	hash := id.HashBytes()
	if _, err := admin.Exec(`UPDATE onceward_record SET record = 'x' WHERE hash = ?`, hash[:]); err != nil {
		t.Fatal(err)
	}
	s.SetTime(firstMoment + time.Hour.Microseconds())
	if n, err := s.Sweep(t.Context(), 100); n != 4 || !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("I13: a sweep changed %d records (%v), want 4, and to be told of the other one", n, err)
	}
	listed := 0
	for f := (store.Filter{Limit: 1}); ; listed++ {
		page, err := s.List(t.Context(), f)
		must(t, err)
		if len(page) == 0 {
			break
		}
		f.After = page[0].ID
	}
	if listed != 4 {
		t.Errorf("I13: %d records are listed, want 4", listed)
	}
	if _, err := s.FindHash(t.Context(), id.Hash()); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("the damaged record was found as %v", err)
	}
	if _, err := s.Get(t.Context(), id); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("the damaged record was read as %v", err)
	}
}
