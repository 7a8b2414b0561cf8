package servers

import (
	"testing"

	"github.com/onceward/onceward/internal/nightly"
)

// TestGaleraLosesAndRegainsItsQuorum: nodes are killed, paused and cut off, and what was committed is on all of them.
func TestGaleraLosesAndRegainsItsQuorum(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the server is slow to start")
	c := NewGalera(t)
	first, second, third := c.Nodes()[0], c.Nodes()[1], c.Nodes()[2]
	must(t, first.Exec(t.Context(), "CREATE TABLE things (id int PRIMARY KEY)"))
	must(t, second.Exec(t.Context(), "INSERT INTO things VALUES (1)"))

	must(t, c.CutOff(t.Context(), third))
	must(t, c.AwaitNoQuorum(t.Context(), third))
	if err := third.Exec(t.Context(), "INSERT INTO things VALUES (2)"); err == nil {
		t.Error("a node without a quorum took a write")
	}
	must(t, c.AwaitSize(t.Context(), 2))
	must(t, first.Exec(t.Context(), "INSERT INTO things VALUES (3)"))
	must(t, c.Rejoin(t.Context(), third))
	must(t, c.AwaitReady(t.Context()))

	must(t, second.Kill())
	must(t, third.Kill())
	must(t, c.AwaitNoQuorum(t.Context(), first))
	must(t, c.Bootstrap(t.Context(), first))
	must(t, first.Exec(t.Context(), "INSERT INTO things VALUES (4)"))
	must(t, second.Restart())
	must(t, third.Restart())
	must(t, c.AwaitReady(t.Context()))

	must(t, third.Pause())
	must(t, c.AwaitSize(t.Context(), 2))
	must(t, third.Resume())
	must(t, c.AwaitReady(t.Context()))

	must(t, c.KillAll())
	must(t, c.StartAll(t.Context()))
	for _, s := range c.Nodes() {
		wantRows(t, s, "SET wsrep_sync_wait = 1; SELECT group_concat(id ORDER BY id) FROM things", "1,3,4")
	}
}
