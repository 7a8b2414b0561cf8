package dynamodb_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// TestEachRequestOfATransaction lets each request of a transaction, and of a step, meet each fault, for a while or for
// good. Who is told that nothing was done is told the truth, also of what arrives later (I4), and after a retry by
// another node it is done once (I1).
func TestEachRequestOfATransaction(t *testing.T) {
	t.Parallel()
	faults := []servers.DynamoDBFault{
		servers.DynamoDBNotSent, servers.DynamoDBReplyLost, servers.DynamoDBSentLater, servers.DynamoDBThrottled,
	}
	for _, fault := range faults {
		t.Run(fmt.Sprint(fault), func(t *testing.T) {
			t.Parallel()
			where := newURL(t)
			rows, calm, later := newBusiness(t, where), open(t, where), open(t, where)
			later.SetClock(func() time.Time { return time.Now().Add(time.Hour) })
			for _, step := range []bool{false, true} {
				for first := range 4 {
					for _, times := range []int{1, 9, 100} {
						name := fmt.Sprint("step ", step, ", request ", first, ", ", times, " times")
						wire := servers.NewDynamoDBTransport(1)
						s := trying(t, where, wire, 1)
						wire.Disturb(20*time.Millisecond, nil)
						c := store.Claim{ID: store.ID{Scope: "acme", Key: name}}
						if step {
							c = claimOf(reserve(t, calm, request(name), store.DecisionExecute))
						}
						var passed atomic.Int32
						wire.Arm(fault, times, func(string) bool { return int(passed.Add(1)) > first })
						insert := func(ctx context.Context) error { return rows.insert(ctx, name) }
						var err error
						ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
						if step {
							err = s.CheckpointTx(ctx, c, time.Minute, func(ctx context.Context) (store.Checkpoint, error) {
								return store.Checkpoint{Point: "charged"}, insert(ctx)
							})
						} else {
							_, err = s.Transact(ctx, request(name), committing(t, insert))
						}
						cancel()
						wire.Close() // what is sent later has arrived
						n := rows.count(name)
						if err == nil && n != 1 || err != nil && !errors.Is(err, store.ErrOutcomeUnknown) && n != 0 {
							t.Errorf("I4: %s: there are %d rows, and the caller was told %v", name, n, err)
						}
						if step {
							rec, err := calm.Get(t.Context(), c.ID)
							if must(t, err); (rec.Point == "charged") != (n == 1) {
								t.Errorf("I1: %s: there are %d rows, and the point is %q", name, n, rec.Point)
							}
							continue
						}
						v, err := later.Transact(t.Context(), request(name), committing(t, insert))
						if n := rows.count(name); err != nil || n != 1 {
							t.Errorf("I1: %s: after a retry (%s, %v) there are %d rows", name, v.Decision, err, n)
						}
					}
				}
			}
		})
	}
}
