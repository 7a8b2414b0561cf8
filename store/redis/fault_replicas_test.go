package redis_test

import (
	"net"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// TestReplicaHangs: with WithReplicas no call of an owner succeeds while the replica has not got what it wrote, however
// often it is made; all of them succeed when the replica goes on.
func TestReplicaHangs(t *testing.T) {
	t.Parallel()
	primary := servers.NewRedis(t)
	host, port, err := net.SplitHostPort(primary.Addr())
	must(t, err)
	replica := servers.NewRedis(t, "replicaof "+host+" "+port)
	s := open(t, primary.URL(), redis.WithReplicas(1, 300*time.Millisecond))
	var first store.Claim
	eventually(t, "the replica follows", func() error {
		v, err := s.Reserve(t.Context(), booking("first"))
		first = store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}
		return err
	})
	eventually(t, "the replica follows", func() error {
		_, err := s.Complete(t.Context(), first, paid("done"))
		return err
	})
	claims := make([]store.Claim, len(operations))
	for i, op := range operations {
		claims[i] = op.prepare(t, s, op.name)
	}

	must(t, replica.Pause())
	r := booking("hangs")
	for range 2 {
		_, err := s.Reserve(t.Context(), r)
		wantUnavailable(t, err, "S9: a reservation that no replica has")
		for i, op := range operations {
			wantUnavailable(t, op.call(t.Context(), s, claims[i]), "S6: "+op.name+" that no replica has")
		}
	}
	if v, err := s.Reserve(t.Context(), booking("first")); err != nil || v.Decision != store.DecisionReplay {
		t.Errorf("A6: a replay got %s (%v)", v.Decision, err)
	}
	must(t, replica.Resume())
	eventually(t, "the replica is back", func() error {
		_, err := s.Reserve(t.Context(), r)
		return err
	})
	for i, op := range operations {
		if err := op.call(t.Context(), s, claims[i]); err != nil {
			t.Errorf("S6: %s when the replica is back: %v", op.name, err)
		}
		if rec := look(t, s, op.name); !op.done(rec) {
			t.Errorf("%s left %+v", op.name, rec)
		}
	}
}
