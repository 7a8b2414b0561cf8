package servers

import (
	"testing"

	"github.com/onceward/onceward/internal/nightly"
)

// TestPatroniReplacesItsPrimary: what was acknowledged is there after the primary was killed, paused and cut off, and
// after there was nobody to ask who is the primary.
func TestPatroniReplacesItsPrimary(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the server is slow to start")
	c := NewPatroni(t)
	leader, err := c.AwaitLeader(t.Context())
	must(t, err)
	_, err = leader.Query(t.Context(), "CREATE TABLE things (id int); INSERT INTO things VALUES (1)")
	must(t, err)
	for name, fault := range map[string]struct{ begin, end func(n *PatroniNode) error }{
		"killed":  {(*PatroniNode).Kill, (*PatroniNode).Restart},
		"paused":  {(*PatroniNode).Pause, (*PatroniNode).Resume},
		"cut off": {cutOff, rejoin},
	} {
		old, err := c.AwaitLeader(t.Context())
		must(t, err)
		must(t, fault.begin(old))
		must(t, await(t.Context(), "the other node takes over", func() (bool, error) {
			next, err := c.Leader(t.Context())
			return err == nil && next != old, nil
		}))
		next, err := c.AwaitLeader(t.Context())
		must(t, err)
		if found, err := next.Query(t.Context(), "SELECT count(*) FROM things"); err != nil || found != "1" {
			t.Errorf("%s: the next primary has %q, %v", name, found, err)
		}
		must(t, fault.end(old))
		must(t, c.AwaitReady(t.Context()))
	}
	must(t, c.Etcd().Pause())
	must(t, await(t.Context(), "no node is the primary", func() (bool, error) {
		_, err := c.Leader(t.Context())
		return err != nil, nil
	}))
	must(t, c.Etcd().Resume())
	must(t, c.AwaitReady(t.Context()))
}

func cutOff(n *PatroniNode) error {
	n.CutOff(true)
	return nil
}

func rejoin(n *PatroniNode) error {
	n.CutOff(false)
	return nil
}
