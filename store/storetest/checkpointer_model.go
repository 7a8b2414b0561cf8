package storetest

import (
	"context"
	"fmt"
	"testing"

	"github.com/onceward/onceward/store"
)

// testCheckpointerModel aims steps at records in every state and holds the store to the model: a step is a checkpoint, and
// one that is refused is refused before its work (S6).
func testCheckpointerModel(t *testing.T, h Harness) {
	points := []struct {
		name string
		store.Checkpoint
	}{
		{"everything", store.Checkpoint{Point: "shipped", Data: []byte("more"), NotReplayable: true, ProviderID: "ch_9"}},
		{"point only", store.Checkpoint{Point: "shipped"}},
		{"data only", store.Checkpoint{Data: []byte("more")}},
		{"empty data", store.Checkpoint{Data: []byte{}}},
		{"nothing", store.Checkpoint{}},
	}
	for _, f := range fixtures(h.probe) {
		h.test(t, f.name, func(e *env) {
			targets := ids(3 * len(points))
			f.build(e, targets)
			for i, p := range points {
				for j, by := range []string{"an older attempt", "its attempt", "a later attempt"} {
					target := targets[3*i+j]
					e.Run(p.name+" by "+by, func(t *testing.T) {
						e := e.with(t)
						e.stepOf(store.Claim{ID: target, Attempt: e.get(target).Attempt + int64(j) - 1}, p.Checkpoint)
					})
				}
			}
		})
	}
	h.test(t, "without an attempt", func(e *env) {
		e.own(id("key"))
		e.stepOf(store.Claim{ID: id("key")}, store.Checkpoint{Point: "shipped"})
	})
	h.test(t, "large", func(e *env) {
		c := e.own(id("key"))
		data := make([]byte, 256<<10)
		for i := range data {
			data[i] = byte(i >> 3)
		}
		e.stepOf(c, store.Checkpoint{Point: "shipped", Data: data})
	})
}

// stepOf does one step and compares what became of it with what the model makes of the same checkpoint.
func (e *env) stepOf(c store.Claim, p store.Checkpoint) {
	e.Helper()
	before := e.get(c.ID)
	event := store.Event{Kind: store.EventCheckpoint, Attempt: c.Attempt, Checkpoint: p}
	want, _, wantErr := store.Step(before, event, e.now())
	row := fmt.Sprint(c.Key, " by ", c.Attempt)
	work, rows := e.stepping(row, func(context.Context) (store.Checkpoint, error) { return p, nil }), 1
	if wantErr != nil {
		work, rows, want = e.refusingStep("S6: a step that is refused"), 0, before
	}
	if problem := sameError(e.checkpointTx(c, work), wantErr); problem != nil {
		e.Errorf("a step of a record that was %s: %v", describe(before), problem)
	}
	if diff := diffRecords(e.get(c.ID), want, 0); diff != "" {
		e.Errorf("a step of a record that was %s made it %s", describe(before), diff)
	}
	e.wantRows(row, rows, "E3: the writes of a step")
}
