package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// stepWork is the work of a step inside its transaction.
type stepWork = func(ctx context.Context) (store.Checkpoint, error)

// checkpointAt returns a checkpoint at a recovery point, with data.
func checkpointAt(point string) store.Checkpoint {
	return store.Checkpoint{Point: point, Data: []byte("carried to " + point + "\x00\xff")}
}

// reaching returns a step that reaches a point and writes nothing.
func reaching(point string) stepWork {
	return func(context.Context) (store.Checkpoint, error) { return checkpointAt(point), nil }
}

// stepping returns a step that adds a row to the business table and continues with then; if the row is refused, the
// step returns that error.
func (e *env) stepping(value string, then stepWork) stepWork {
	return func(ctx context.Context) (store.Checkpoint, error) {
		if err := e.Business.Insert(ctx, value); err != nil {
			return store.Checkpoint{}, err
		}
		return then(ctx)
	}
}

// refusingStep returns a step that must not be called.
func (e *env) refusingStep(rule string) stepWork {
	return func(context.Context) (store.Checkpoint, error) {
		e.Errorf("%s: the step was executed", rule)
		return store.Checkpoint{}, errDeclined
	}
}

// errDeclined is the error of a failing step. It is compared by its identity: the store returns it unchanged.
var errDeclined = errors.New("declined")

func (e *env) checkpointTx(c store.Claim, w stepWork) error {
	return e.Store.(store.TxCheckpointer).CheckpointTx(e.ctx, c, calm, w)
}

// wantPoint checks the recovery point of a record. An empty point means that there is none.
func (e *env) wantPoint(id store.ID, point, rule string) {
	e.Helper()
	want := store.Checkpoint{}
	if point != "" {
		want = checkpointAt(point)
	}
	if rec := e.get(id); rec.Point != want.Point || string(rec.Data) != string(want.Data) {
		e.Errorf("%s: record %q is at point %q with %q, want %q with %q", rule, id.Key, rec.Point, rec.Data,
			want.Point, want.Data)
	}
}

// checkStep checks that the rows of a step and its point are both there or both absent, and that the error matches.
// Before the step neither was there.
func (e *env) checkStep(c store.Claim, row, point string, err error) {
	e.Helper()
	rows, reached := e.Business.Count(row), e.get(c.ID).Point == point
	switch {
	case errors.Is(err, store.ErrOutcomeUnknown): // the outcome cannot be known, and the error reports that
	case err == nil && (rows != 1 || !reached):
		e.Errorf("E3: the step of %q succeeded: %d rows of it are there, its point %t, want both", c.Key, rows, reached)
	case err != nil && (rows != 0 || reached):
		e.Errorf("E3: the step of %q got %v: %d rows of it are there, its point %t, want neither", c.Key, err, rows,
			reached)
	}
}

// testCheckpointer checks that a step is committed with its recovery point, or not at all (E3).
func testCheckpointer(t *testing.T, h Harness) {
	h.test(t, "commit keeps work and point", func(e *env) {
		c := e.own(id("key"))
		for i, point := range []string{"charged", "shipped"} {
			e.must(e.checkpointTx(c, e.stepping(point, reaching(point))))
			e.wantRows(point, 1, "E3: a step commits its writes")
			e.wantPoint(c.ID, point, fmt.Sprint("E3: step ", i, " commits its point"))
		}
		e.complete(c, "done")
	})
	h.test(t, "an error undoes both", stepFails)
	h.test(t, "nothing is visible before the end", func(e *env) {
		c := e.own(id("key"))
		e.must(e.checkpointTx(c, e.stepping("row", func(context.Context) (store.Checkpoint, error) {
			e.wantRows("row", 0, "E3: before the commit")
			if rec, err := e.find(c.ID); err != nil || rec.Point != "" {
				e.Errorf("E3: before the commit the point is %q (%v), want none", rec.Point, err)
			}
			return checkpointAt("charged"), nil
		})))
		e.checkStep(c, "row", "charged", nil)
	})
	h.test(t, "a panic undoes both", func(e *env) {
		e.stepLeaves(func() { panic(errDeclined) }, errDeclined)
	})
	h.test(t, "a goroutine that ends undoes both", func(e *env) {
		e.stepLeaves(runtime.Goexit, nil)
	})
	h.test(t, "resumed from the point", stepResumed)
	h.test(t, "the lease is left alone", func(e *env) {
		c := e.own(id("key"), lease(2*calm))
		before := e.get(c.ID).LeaseUntil
		e.must(e.Store.(store.TxCheckpointer).CheckpointTx(e.ctx, c, calm, reaching("charged")))
		if after := e.get(c.ID).LeaseUntil; !after.Equal(before) {
			e.Errorf("E2: a step moved the end of the lease from %s to %s", before, after)
		}
	})
	h.test(t, "a heartbeat during the step", stepExtended)
	if restarts(h.probe) {
		h.test(t, "restart", func(e *env) {
			c := e.own(id("key"))
			e.must(e.checkpointTx(c, e.stepping("row", reaching("charged"))))
			e.reopen()
			e.checkStep(c, "row", "charged", nil)
		})
	}
}

// stepFails undoes steps, and then lets a step succeed.
func stepFails(e *env) {
	c := e.own(id("key"))
	before := e.get(c.ID)
	for range 3 {
		err := e.checkpointTx(c, e.stepping("row", func(context.Context) (store.Checkpoint, error) {
			return checkpointAt("charged"), errDeclined
		}))
		if err != errDeclined {
			e.Errorf("E3: the error of a step came back as %#v, want it as it is", err)
		}
		e.wantRows("row", 0, "E3: a step that failed")
		if diff := diffRecords(e.get(c.ID), before, 0); diff != "" {
			e.Errorf("E3: a step that failed changed the record: %s", diff)
		}
	}
	e.must(e.checkpointTx(c, e.stepping("row", reaching("charged"))))
	e.checkStep(c, "row", "charged", nil)
}

// stepLeaves makes a step end its goroutine, or unwind it.
func (e *env) stepLeaves(leave func(), want any) {
	e.Helper()
	c := e.own(id("key"))
	left := make(chan any, 1)
	go func() {
		defer func() { left <- recover() }()
		err := e.checkpointTx(c, e.stepping("row", func(context.Context) (store.Checkpoint, error) {
			leave()
			return checkpointAt("charged"), nil
		}))
		e.Errorf("E3: a step that did not return came back with %v", err)
	}()
	select {
	case got := <-left:
		if got != want {
			e.Errorf("E3: the step panicked with %v, want %v to pass on", got, want)
		}
	case <-e.ctx.Done():
		e.Fatal("E3: a step that did not return holds its caller")
	}
	e.must(e.checkpointTx(c, e.stepping("after", reaching("shipped"))))
	e.wantRows("row", 0, "E3: a step that did not return")
	e.checkStep(c, "after", "shipped", nil)
}

// stepResumed checks that the next attempt finds the committed point of the last one, and continues from there.
func stepResumed(e *env) {
	first := e.own(id("key"), resume, lease(e.brief()))
	e.must(e.checkpointTx(first, e.stepping("charged", reaching("charged"))))
	lapse(e)
	v := e.wantDecision(request(first.ID, resume), store.DecisionExecute, "section 4: the lease is over")
	if v.Origin != store.OriginResumed || v.Record.Point != "charged" ||
		string(v.Record.Data) != string(checkpointAt("charged").Data) {
		e.Errorf("E3: the next attempt is %s at point %q with %q", v.Origin, v.Record.Point, v.Record.Data)
	}
	second := store.Claim{ID: first.ID, Attempt: v.Record.Attempt}
	e.must(e.checkpointTx(second, e.stepping("shipped", reaching("shipped"))))
	e.wantFenced(e.checkpointTx(first, e.refusingStep("S6: by an owner that was replaced")),
		"S6: by an owner that was replaced")
	e.checkStep(second, "shipped", "shipped", nil)
}

// stepExtended sends a heartbeat while a step runs. A store with one writer makes it wait for the end of the step; no
// store loses the heartbeat, or undoes it when it stores the point.
func stepExtended(e *env) {
	c := e.own(id("key"))
	beat := make(chan error, 1)
	e.must(e.checkpointTx(c, e.stepping("row", func(context.Context) (store.Checkpoint, error) {
		passed := make(chan struct{})
		go func() {
			beat <- e.Store.Extend(e.ctx, c, 3*calm)
			close(passed)
		}()
		select {
		case <-passed:
		case <-time.After(glance): // the heartbeat waits for the end of the step
		}
		return checkpointAt("charged"), nil
	})))
	select {
	case err := <-beat:
		e.must(err)
	case <-e.ctx.Done():
		e.Fatal("E2: a heartbeat did not get through after the step")
	}
	e.checkStep(c, "row", "charged", nil)
	if left := e.get(c.ID).LeaseUntil.Sub(e.now()); left < 2*calm {
		e.Errorf("E2: a lease that was extended to %s during a step lasts for %s", 3*calm, left)
	}
}

// testCheckpointerOwnership makes steps end the transaction, which they must not end. Whatever such a step returns, its
// caller gets a result that matches what was committed.
func testCheckpointerOwnership(t *testing.T, h Harness) {
	if !h.probe.Business.Collects {
		testStepsThatEnd(t, h)
	}
	h.test(t, "the transaction is over after the end", stepIsOver)
}

// testStepsThatEnd makes steps end a *sql.Tx, by its methods and by statements.
func testStepsThatEnd(t *testing.T, h Harness) {
	for name, failure := range map[string]error{"success": nil, "an error": errDeclined} {
		h.test(t, "tx.Commit, then "+name, func(e *env) {
			e.stepMeddles(id("key"), failure, func(ctx context.Context, insert func() error) error {
				err := insert()
				e.wantOwned("Commit", onceward.Tx(ctx).Commit())
				return err
			})
			e.wantKept(failure == nil)
		})
		h.test(t, "tx.Rollback, then "+name, func(e *env) {
			e.stepMeddles(id("key"), failure, func(ctx context.Context, insert func() error) error {
				err := insert()
				e.wantOwned("Rollback", onceward.Tx(ctx).Rollback())
				return err
			})
			e.wantKept(failure == nil)
		})
		h.test(t, "a statement that ends it, then "+name, func(e *env) {
			for n, statement := range slices.Concat([]string{"COMMIT", "ROLLBACK"}, e.Business.Enders) {
				exec := func(ctx context.Context) { _, _ = onceward.Tx(ctx).ExecContext(ctx, statement) }
				e.stepMeddles(id(fmt.Sprint("before ", n)), failure,
					func(ctx context.Context, insert func() error) error {
						err := insert()
						exec(ctx)
						return err
					})
				e.stepMeddles(id(fmt.Sprint("after ", n)), failure,
					func(ctx context.Context, insert func() error) error {
						exec(ctx)
						return insert()
					})
			}
		})
		h.test(t, "a failed statement, then "+name, func(e *env) {
			e.stepMeddles(id("key"), failure, func(ctx context.Context, insert func() error) error {
				err := insert()
				if _, failed := onceward.Tx(ctx).ExecContext(ctx,
					"INSERT INTO no_such_table_anywhere VALUES (1)"); failed == nil {
					e.Error("a statement on a table that does not exist went through")
				}
				return err
			})
		})
	}
}

// stepIsOver writes through the transaction of a step that has ended.
func stepIsOver(e *env) {
	for name, failure := range map[string]error{"success": nil, "an error": errDeclined} {
		var kept context.Context
		err := e.checkpointTx(e.own(id(name)), func(ctx context.Context) (store.Checkpoint, error) {
			kept = ctx
			return checkpointAt("charged"), failure
		})
		if !errors.Is(err, failure) {
			e.Errorf("E3: a step that ended with %v got %v", failure, err)
		}
		if err := e.Business.Insert(kept, "late"); err == nil {
			e.Error("E3: a step wrote through its transaction after it had ended")
		}
	}
	e.must(e.checkpointTx(e.own(id("next")), reaching("charged")))
	e.wantRows("late", 0, "E3: what is written after the end")
}

// wantKept checks that a step that may not end its transaction continued as if it had not tried to.
func (e *env) wantKept(kept bool) {
	e.Helper()
	rows := 0
	if kept {
		rows = 1
	}
	e.wantRows("key", rows, "E3: a step that was refused to end its transaction")
}

// stepMeddles runs a step that does something to its transaction, and checks that the reported result is true.
func (e *env) stepMeddles(target store.ID, failure error, meddle func(ctx context.Context, insert func() error) error) {
	e.Helper()
	c := e.own(target)
	err := e.checkpointTx(c, func(ctx context.Context) (store.Checkpoint, error) {
		if err := meddle(ctx, func() error { return e.Business.Insert(ctx, target.Key) }); err != nil {
			return store.Checkpoint{}, err
		}
		return checkpointAt("charged"), failure
	})
	if err == nil && failure != nil {
		e.Errorf("E3: a step that failed got no error")
	}
	e.checkStep(c, target.Key, "charged", err)
	e.must(e.checkpointTx(c, e.stepping(target.Key+", next", reaching("shipped"))))
	e.checkStep(c, target.Key+", next", "shipped", nil)
}

// testCheckpointerModel sends steps to records in every state and compares the store with the model: a step is a
// checkpoint, and a refused step is refused before its work (S6).
func testCheckpointerModel(t *testing.T, h Harness) {
	points := []struct {
		name string
		store.Checkpoint
	}{
		{"everything", store.Checkpoint{
			Point: "shipped", Data: []byte("more"), NotReplayable: true,
			ProviderID: "ch_9",
		}},
		{"point only", store.Checkpoint{Point: "shipped"}},
		{"data only", store.Checkpoint{Data: []byte("more")}},
		{"empty data", store.Checkpoint{Data: []byte{}}},
		{"nothing", store.Checkpoint{}},
	}
	for _, f := range fixtures(h.probe) {
		h.test(t, f.name, func(e *env) {
			records := f.stock(3 * len(points))
			for _, p := range points {
				for j, by := range []string{"an older attempt", "its attempt", "a later attempt"} {
					e.Run(p.name+" by "+by, func(t *testing.T) {
						e := e.with(t)
						on := records.next(e)
						records.met(e.stepOf(on, on.before.Attempt+int64(j)-1, p.name, p.Checkpoint))
					})
				}
			}
		})
	}
	h.test(t, "without an attempt", func(e *env) {
		e.own(id("key"))
		e.stepOf(target{id("key"), e.get(id("key"))}, 0, "", store.Checkpoint{Point: "shipped"})
	})
	h.test(t, "large", func(e *env) {
		c := e.own(id("key"))
		data := make([]byte, 256<<10)
		for i := range data {
			data[i] = byte(i >> 3)
		}
		e.stepOf(target{c.ID, e.get(c.ID)}, c.Attempt, "", store.Checkpoint{Point: "shipped", Data: data})
	})
}

// stepOf runs one step, whose row has its name, and compares the result with what the model makes of the same
// checkpoint. It returns the record after the step.
func (e *env) stepOf(on target, attempt int64, name string, p store.Checkpoint) (after store.Record) {
	e.Helper()
	c := store.Claim{ID: on.ID, Attempt: attempt}
	event := store.Event{Kind: store.EventCheckpoint, Attempt: attempt, Checkpoint: p}
	want, _, wantErr := store.Step(on.before, event, e.now())
	row := fmt.Sprint(c.Key, " by ", attempt, " ", name)
	work, rows := e.stepping(row, func(context.Context) (store.Checkpoint, error) { return p, nil }), 1
	if wantErr != nil {
		work, rows, want = e.refusingStep("S6: a step that is refused"), 0, on.before
	}
	if problem := sameError(e.checkpointTx(c, work), wantErr); problem != nil {
		e.Errorf("a step of a record that was %s: %v", describe(on.before), problem)
	}
	after = e.get(c.ID)
	if diff := diffRecords(after, want, 0); diff != "" {
		e.Errorf("a step of a record that was %s made it %s", describe(on.before), diff)
	}
	e.wantRows(row, rows, "E3: the writes of a step")
	return after
}
