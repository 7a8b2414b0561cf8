package mysql_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
)

// TestProviderEntries: records are found by the ids of providers that they carry, and by no others; what finds them
// goes with them.
func TestProviderEntries(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	exec(t, admin, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	wantFound := func(providerID string, want ...string) {
		t.Helper()
		found, err := s.FindProviderID(t.Context(), providerID)
		must(t, err)
		var keys []string
		for i := range found {
			keys = append(keys, found[i].ID.Key)
		}
		if strings.Join(keys, " ") != strings.Join(want, " ") {
			t.Errorf("%s leads to %q, want %q", providerID, keys, want)
		}
	}
	complete := func(key, first, second string) {
		t.Helper()
		claim := own(t, s, reservation(key))
		must(t, s.Checkpoint(t.Context(), claim, store.Checkpoint{Point: "sent", ProviderID: first}))
		wantFound(first, key)
		done := answer("done")
		done.ProviderID = second
		_, err := s.Complete(t.Context(), claim, done)
		must(t, err)
	}
	complete("changed", "ch_1", "ch_2")
	wantFound("ch_1")
	wantFound("ch_2", "changed")
	done := settled(store.TxCommit, "done")
	done.Completion.ProviderID = "ch_3"
	transacted(t, s, "whole", func(context.Context, store.Verdict) store.Settlement { return done },
		store.DecisionExecute, "a transaction")
	wantFound("ch_3", "whole")

	must(t, s.Bust(t.Context(), idOf("changed"), false))
	wantFound("ch_2")
	if n := number(t, admin, `SELECT COUNT(*) FROM onceward_provider`); n != 1 {
		t.Errorf("%d entries are left of a record that is gone, want that of the other one", n-1)
	}
	complete("changed", "ch_4", "ch_5") // the key again, behind which nothing must be swept
	wantFound("ch_5", "changed")
	reapAll(t, s, admin)
	wantFound("ch_3")
	wantFound("ch_5")
	if n := number(t, admin, `SELECT COUNT(*) FROM onceward_provider`); n != 0 {
		t.Errorf("%d entries are left of records that are gone", n)
	}
}

// reapAll makes all records expire, and removes them.
func reapAll(t testing.TB, s *mysql.Store, admin *sql.DB) {
	t.Helper()
	if _, err := admin.Exec(`UPDATE onceward_record SET due = 1`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reap(t.Context(), 100, false); err != nil {
		t.Fatal(err)
	}
}
