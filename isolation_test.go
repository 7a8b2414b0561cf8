package onceward_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// TestIsolationIsRefused: a level that no store has, and one for a route without a transaction, are mistakes of the
// program.
func TestIsolationIsRefused(t *testing.T) {
	t.Parallel()
	guard, err := onceward.New(memory.New(), onceward.Config{
		Scope: onceward.SingleScope("all"), Secret: []byte("0123456789abcdef"),
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		level sql.IsolationLevel
		want  string
	}{
		"a level that no store has":     {sql.LevelReadUncommitted, "Isolation(Read Uncommitted)"},
		"a route without a transaction": {sql.LevelSerializable, "needs Transactional()"},
	} {
		_, err := guard.Procedure(onceward.Reserved(onceward.FailureUnknown), onceward.Isolation(c.level))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error that says %q", name, err, c.want)
		}
	}
}
