package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// groupRun is what became of one member of a group.
type groupRun struct {
	key  string
	runs atomic.Int64
	v    store.Verdict
	err  error
}

// runGroup queues a transaction for each key, in this order, and then lets the writer run them as one group.
func runGroup(t testing.TB, s *Store, keys []string, body func(ctx context.Context, key string) store.Settlement,
	letGo func(),
) []*groupRun {
	t.Helper()
	var group sync.WaitGroup
	all := make([]*groupRun, len(keys))
	for i, key := range keys {
		run := &groupRun{key: key}
		all[i] = run
		group.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					run.err = fmt.Errorf("panicked: %v", p)
				}
			}()
			run.v, run.err = s.Transact(context.Background(), insideReservation(key),
				func(ctx context.Context, _ store.Verdict) store.Settlement {
					run.runs.Add(1)
					return body(ctx, key)
				})
		})
		awaitQueue(t, s, i+1)
	}
	letGo()
	group.Wait()
	return all
}

// countCommits counts the transactions that the writer commits with something in them.
func countCommits(t testing.TB, s *Store) *atomic.Int64 {
	t.Helper()
	commits := new(atomic.Int64)
	inWriter(t, s, func(w *writer) error {
		w.raw.CommitHook(func() bool {
			commits.Add(1)
			return true
		})
		return nil
	})
	commits.Store(0)
	return commits
}

// TestGroupCommit: what waits together is committed together, in all modes.
func TestGroupCommit(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	commits := countCommits(t, s)
	const n = 50
	letGo := holdWriter(t, s)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			key := fmt.Sprint("reserved-", i)
			if v, err := s.Reserve(context.Background(), insideReservation(key)); err != nil ||
				v.Decision != store.DecisionExecute {
				t.Errorf("reserve got (%s, %v)", v.Decision, err)
			}
		})
		group.Go(func() {
			key := fmt.Sprint("transactional-", i)
			if v, err := s.Transact(context.Background(), insideReservation(key), insertAndCommit(key)); err != nil ||
				v.Decision != store.DecisionExecute {
				t.Errorf("transact got (%s, %v)", v.Decision, err)
			}
		})
	}
	awaitQueue(t, s, 2*n)
	letGo()
	group.Wait()
	for i := range n {
		wantWhole(t, s, fmt.Sprint("transactional-", i))
	}
	if got := commits.Load(); got > n {
		t.Errorf("%d operations took %d commits, want them shared", 2*n, got)
	}
}

// TestGivingUpInTheQueue: who gives up before its turn is not executed, and does not hold up the others.
func TestGivingUpInTheQueue(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	letGo := holdWriter(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var ran atomic.Int64
	for i := range 20 {
		group.Go(func() {
			key := fmt.Sprint("leaves-", i)
			_, err := s.Transact(ctx, insideReservation(key), func(context.Context, store.Verdict) store.Settlement {
				ran.Add(1)
				return store.Settlement{}
			})
			if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Errorf("who gave up got %v", err)
			}
			if s.InFlight(insideID(key)) {
				t.Error("who gave up is still in flight")
			}
		})
		group.Go(func() {
			if _, err := s.Reserve(ctx, insideReservation(fmt.Sprint("reserve-", i))); !errors.Is(err,
				context.Canceled) {
				t.Errorf("who gave up got %v", err)
			}
		})
	}
	awaitQueue(t, s, 40)
	var stays sync.WaitGroup
	stays.Go(func() {
		if v, err := s.Transact(context.Background(), insideReservation("key"), insertAndCommit("key")); err != nil ||
			v.Decision != store.DecisionExecute {
			t.Errorf("who stayed got (%s, %v)", v.Decision, err)
		}
	})
	awaitQueue(t, s, 41)
	cancel()
	group.Wait() // they do not wait for the writer, which is still held
	letGo()
	stays.Wait()
	wantOnceMore(t, s, true)
	if ran.Load() != 0 {
		t.Errorf("%d of those who gave up were executed", ran.Load())
	}
	for i := range 20 {
		if state := stateOf(t, s, fmt.Sprint("reserve-", i)); state != store.StateNone {
			t.Errorf("S9: a reservation that was given up in the queue left a record that is %s", state)
		}
	}
}

// TestGivingUpInTheTurn: who gives up while its work runs is executed all the same (E6), and learns it.
func TestGivingUpInTheTurn(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	ctx, cancel := context.WithCancel(t.Context())
	v, err := s.Transact(ctx, insideReservation("key"),
		func(workCtx context.Context, v store.Verdict) store.Settlement {
			cancel()
			return insertAndCommit("key")(context.WithoutCancel(workCtx), v)
		})
	if err != nil || v.Decision != store.DecisionExecute || !wantWhole(t, s, "key") {
		t.Errorf("E6: got (%s, %v)", v.Decision, err)
	}
}

// TestHeartbeatsBetweenSlowHandlers: a crowd of slow handlers does not hold up an owner's heartbeat until the last of
// them.
func TestHeartbeatsBetweenSlowHandlers(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	grant, err := s.Reserve(t.Context(), insideReservation("owned"))
	if err != nil {
		t.Fatal(err)
	}
	claim := store.Claim{ID: insideID("owned"), Attempt: grant.Record.Attempt}
	extended := func() bool {
		rec, err := s.Get(context.Background(), claim.ID)
		if err != nil {
			t.Error(err)
		}
		return rec.LeaseUntil.Sub(rec.CreatedAt) >= time.Hour
	}
	var before atomic.Int64 // the handlers that began before the heartbeat
	var beat, group sync.WaitGroup
	letGo := holdWriter(t, s)
	const crowd = 12
	first := make(chan struct{})
	for i := range crowd {
		group.Go(func() {
			_, err := s.Transact(context.Background(), insideReservation(fmt.Sprint("slow-", i)),
				func(context.Context, store.Verdict) store.Settlement {
					if !extended() && before.Add(1) == 1 {
						close(first)
						awaitQueue(t, s, 1)
					}
					time.Sleep(groupTime + time.Millisecond) // being slow is what is tested
					return store.Settlement{}
				})
			if err != nil {
				t.Error(err)
			}
		})
		awaitQueue(t, s, i+1)
	}
	beat.Go(func() {
		<-first
		if err := s.Extend(context.Background(), claim, time.Hour); err != nil {
			t.Error(err)
		}
	})
	letGo()
	beat.Wait()
	group.Wait()
	if n := before.Load(); n > crowd/2 {
		t.Errorf("S5: a heartbeat waited for %d of %d slow handlers", n, crowd)
	}
}

// neighbours checks that the others of a group were executed once, and told so.
func neighbours(t *testing.T, s *Store, all []*groupRun, culprit string) {
	t.Helper()
	for _, run := range all {
		if run.key == culprit {
			continue
		}
		if run.err != nil || run.v.Decision != store.DecisionExecute {
			t.Errorf("neighbour %s got (%s, %v)", run.key, run.v.Decision, run.err)
		}
		if !wantWhole(t, s, run.key) {
			t.Errorf("I2: neighbour %s was acknowledged but is not there", run.key)
		}
		if n := run.runs.Load(); n > 2 {
			t.Errorf("neighbour %s ran %d times, want once, and once more after a rollback", run.key, n)
		}
	}
}

// culprits are members that end badly, each in its own way, with what they are told.
var culprits = map[string]struct {
	body func(ctx context.Context) store.Settlement
	fine bool // whether it gets no error
}{
	"rolls back": {fine: true, body: func(ctx context.Context) store.Settlement {
		insertAndCommit("culprit")(ctx, store.Verdict{})
		return store.Settlement{Action: store.TxRollback}
	}},
	"panics": {body: func(ctx context.Context) store.Settlement {
		insertAndCommit("culprit")(ctx, store.Verdict{})
		panic("on purpose")
	}},
	"leaves its goroutine": {fine: true, body: func(ctx context.Context) store.Settlement {
		insertAndCommit("culprit")(ctx, store.Verdict{})
		runtime.Goexit()
		return store.Settlement{}
	}},
	"asks for a rollback": {body: func(ctx context.Context) store.Settlement {
		_, _ = onceward.Tx(ctx).Exec(`CREATE TABLE once (value TEXT UNIQUE ON CONFLICT ROLLBACK)`)
		_, _ = onceward.Tx(ctx).Exec(`INSERT INTO once VALUES ('x'), ('x')`)
		return insertAndCommit("culprit")(ctx, store.Verdict{})
	}},
	"is interrupted": {body: func(ctx context.Context) store.Settlement {
		for limit, began := 5*time.Millisecond, false; !began; limit *= 2 { // too short a one is over before it begins
			short, cancel := context.WithTimeout(ctx, limit)
			_, err := onceward.Tx(ctx).ExecContext(short, endlessInsert)
			cancel()
			began = !errors.Is(err, context.DeadlineExceeded)
		}
		return insertAndCommit("culprit")(ctx, store.Verdict{})
	}},
	"breaks a deferred foreign key": {body: func(ctx context.Context) store.Settlement {
		_, _ = onceward.Tx(ctx).Exec(`INSERT INTO child VALUES (7)`)
		return insertAndCommit("culprit")(ctx, store.Verdict{})
	}},
	"has no answer": {body: func(ctx context.Context) store.Settlement {
		settlement := insertAndCommit("culprit")(ctx, store.Verdict{})
		settlement.Completion = store.Completion{}
		return settlement
	}},
}

// endlessInsert runs until it is interrupted.
const endlessInsert = `INSERT INTO business WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT 'endless' FROM n`

// TestBadNeighbour puts each culprit between others, first and last, and behind another culprit.
func TestBadNeighbour(t *testing.T) {
	t.Parallel()
	for name, culprit := range culprits {
		for place, keys := range map[string][]string{
			"first": {"culprit", "a", "b"}, "middle": {"a", "culprit", "b"}, "last": {"a", "b", "culprit"},
		} {
			t.Run(name+"/"+place, func(t *testing.T) {
				t.Parallel()
				s := openInside(t, insidePath(t))
				err := s.Update(t.Context(), func(tx *sql.Tx) error {
					_, err := tx.Exec(`CREATE TABLE parent (id INTEGER PRIMARY KEY);
						CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				letGo := holdWriter(t, s)
				all := runGroup(t, s, keys, func(ctx context.Context, key string) store.Settlement {
					if key == "culprit" {
						return culprit.body(ctx)
					}
					return insertAndCommit(key)(ctx, store.Verdict{})
				}, letGo)
				neighbours(t, s, all, "culprit")
				for _, run := range all {
					if run.key == "culprit" && (run.err == nil) != culprit.fine {
						t.Errorf("the culprit got %v", run.err)
					}
				}
				if wantWhole(t, s, "culprit") || rowsOf(t, s, "endless") != 0 {
					t.Error("I4: something of the culprit stayed")
				}
				if v, err := s.Transact(t.Context(), insideReservation("culprit"),
					insertAndCommit("culprit")); err != nil || v.Decision != store.DecisionExecute {
					t.Errorf("E1: the culprit's retry got (%s, %v)", v.Decision, err)
				}
				if !wantWhole(t, s, "culprit") {
					t.Error("E1: the culprit's retry is not there")
				}
			})
		}
	}
}

// TestPanicThenSpoiled: a member whose goroutine has gone is not waited for when its group is run again.
func TestPanicThenSpoiled(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	letGo := holdWriter(t, s)
	all := runGroup(t, s, []string{"a", "panics", "exits", "spoils", "b"},
		func(ctx context.Context, key string) store.Settlement {
			switch key {
			case "panics":
				panic("on purpose")
			case "exits":
				runtime.Goexit()
			case "spoils":
				return culprits["asks for a rollback"].body(ctx)
			}
			return insertAndCommit(key)(ctx, store.Verdict{})
		}, letGo)
	for _, run := range all {
		if run.key == "a" || run.key == "b" {
			neighbours(t, s, []*groupRun{run}, "")
		} else if wantWhole(t, s, run.key) {
			t.Errorf("%s was executed", run.key)
		}
	}
}

// TestUpdatePanics: also outside of a protected handler.
func TestUpdatePanics(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = s.Update(t.Context(), func(tx *sql.Tx) error {
			_, _ = tx.Exec(`INSERT INTO business VALUES ('update')`)
			panic("on purpose")
		})
	}()
	wantOnceMore(t, s, false)
	if n := rowsOf(t, s, "update"); n != 0 {
		t.Errorf("%d rows of an update that panicked", n)
	}
}

// groupStep is one step in a group.
type groupStep struct {
	claim store.Claim
	runs  atomic.Int64
	err   error
}

func newGroupStep(t testing.TB, s *Store, key string) *groupStep {
	t.Helper()
	v, err := s.Reserve(t.Context(), insideReservation(key))
	if err != nil || v.Decision != store.DecisionExecute {
		t.Fatalf("reserve %q: got (%s, %v)", key, v.Decision, err)
	}
	return &groupStep{claim: store.Claim{ID: insideID(key), Attempt: v.Record.Attempt}}
}

// do writes a row named like the key, and ends as it is told.
func (g *groupStep) do(ctx context.Context, s *Store, lease time.Duration, end func(ctx context.Context) error) {
	g.err = s.CheckpointTx(ctx, g.claim, lease, func(ctx context.Context) (store.Checkpoint, error) {
		g.runs.Add(1)
		_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO business (value) VALUES (?)`, g.claim.Key)
		return store.Checkpoint{Point: "reached"}, errors.Join(err, end(ctx))
	})
}

// want checks that a step is there as a whole, or not at all.
func (g *groupStep) want(t testing.TB, s *Store, done bool, runs int64, rule string) {
	t.Helper()
	rec, err := s.Get(t.Context(), g.claim.ID)
	if err != nil {
		t.Fatal(err)
	}
	rows := rowsOf(t, s, g.claim.Key)
	if (g.err == nil) != done || (rows == 1) != done || (rec.Point == "reached") != done || rows > 1 {
		t.Errorf("%s: the step of %q got %v, with %d rows and at %q; want it done %t", rule, g.claim.Key, g.err, rows,
			rec.Point, done)
	}
	if got := g.runs.Load(); got != runs {
		t.Errorf("%s: the step of %q ran %d times, want %d", rule, g.claim.Key, got, runs)
	}
}

func succeed(context.Context) error { return nil }

// runSteps queues steps in this order, and then lets the writer run them as one group.
func runSteps(t testing.TB, s *Store, steps []*groupStep, end func(ctx context.Context, g *groupStep) error) {
	t.Helper()
	letGo := holdWriter(t, s)
	var group sync.WaitGroup
	for i, g := range steps {
		group.Go(func() {
			g.do(context.Background(), s, time.Minute, func(ctx context.Context) error { return end(ctx, g) })
		})
		awaitQueue(t, s, i+1)
	}
	letGo()
	group.Wait()
}

// TestStepsInAGroup: one that fails is undone alone, and one that is refused does not run.
func TestStepsInAGroup(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	first, failing, stale, last := newGroupStep(t, s, "first"), newGroupStep(t, s, "failing"), newGroupStep(t, s,
		"stale"), newGroupStep(t, s, "last")
	stale.claim.Attempt++
	declined := errors.New("declined")
	runSteps(t, s, []*groupStep{first, failing, stale, last}, func(_ context.Context, g *groupStep) error {
		if g == failing {
			return declined
		}
		return nil
	})
	first.want(t, s, true, 1, "E3")
	failing.want(t, s, false, 1, "E3")
	stale.want(t, s, false, 0, "S6: it is refused before its work")
	last.want(t, s, true, 1, "E3: after one that failed and one that was refused")
	if !errors.Is(failing.err, declined) || !errors.Is(stale.err, store.ErrFenced) {
		t.Errorf("E3: the failing step got %v, the stale one %v", failing.err, stale.err)
	}
}

// TestStepBesideOneThatSpoils: the group loses its transaction by one of its steps. The others are run again, each by
// itself, and count once; what their first run said does not count. A writer that is slow may cut the group before the
// one that spoils it, so groups are run until one was not.
func TestStepBesideOneThatSpoils(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	for round := range 50 {
		if stepsBesideOneThatSpoils(t, s, fmt.Sprint(round)) {
			return
		}
	}
	t.Error("no group was spoiled")
}

func stepsBesideOneThatSpoils(t *testing.T, s *Store, round string) (again bool) {
	before, fickle, spoiling := newGroupStep(t, s, "before"+round), newGroupStep(t, s,
		"fickle"+round), newGroupStep(t, s, "spoiling"+round)
	runSteps(t, s, []*groupStep{before, fickle, spoiling}, func(ctx context.Context, g *groupStep) error {
		switch {
		case g == spoiling:
			_, err := onceward.Tx(ctx).Exec(`INSERT OR ROLLBACK INTO business VALUES (NULL)`)
			return err
		case g == fickle && g.runs.Load() == 1:
			return errors.New("not yet")
		default:
			return nil
		}
	})
	again = before.runs.Load() == 2 && fickle.runs.Load() == 2
	before.want(t, s, true, before.runs.Load(), "E3: after a neighbour lost the transaction")
	fickle.want(t, s, fickle.runs.Load() == 2, fickle.runs.Load(), "E3: the last run counts")
	spoiling.want(t, s, false, 1, "E3: what was undone is not repeated by itself")
	if !errors.Is(spoiling.err, store.ErrUnavailable) {
		t.Errorf("E3: the step whose transaction SQLite undid got %v, want ErrUnavailable", spoiling.err)
	}
	if n := max(before.runs.Load(), fickle.runs.Load()); n > 2 {
		t.Errorf("E3: a neighbour ran %d times", n)
	}
	return again
}

// TestStepThatPanicsBesideOthers: its goroutine is gone when the group has to be run again.
func TestStepThatPanicsBesideOthers(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	panicking, other := newGroupStep(t, s, "panicking"), newGroupStep(t, s, "other")
	letGo := holdWriter(t, s)
	panicked := make(chan any, 1)
	go func() {
		defer func() { panicked <- recover() }()
		panicking.do(context.Background(), s, time.Minute, func(context.Context) error { panic("lost") })
	}()
	awaitQueue(t, s, 1)
	var group sync.WaitGroup
	group.Go(func() { other.do(context.Background(), s, time.Minute, succeed) })
	awaitQueue(t, s, 2)
	letGo()
	group.Wait()
	if got := <-panicked; got != "lost" {
		t.Errorf("E3: the panic came out as %v", got)
	}
	other.want(t, s, true, 1, "E3: beside a step that panicked")
	panicking.err = errors.New("panicked")
	panicking.want(t, s, false, 1, "E3: a step that panicked")
}

// TestStepGivenUpInTheQueue: who gives up before its turn is not executed.
func TestStepGivenUpInTheQueue(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	g := newGroupStep(t, s, "key")
	ctx, cancel := context.WithCancel(t.Context())
	letGo := holdWriter(t, s)
	var group sync.WaitGroup
	group.Go(func() { g.do(ctx, s, time.Minute, succeed) })
	awaitQueue(t, s, 1)
	cancel()
	group.Wait()
	letGo()
	if !errors.Is(g.err, store.ErrUnavailable) || !errors.Is(g.err, context.Canceled) {
		t.Errorf("who gave up got %v", g.err)
	}
	g.want(t, s, false, 0, "E6")
}
