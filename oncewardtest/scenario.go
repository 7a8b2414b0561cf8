package oncewardtest

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// scenarios returns all runs of a check: runs without a particular place of failure, and runs that fail at each call
// that the clean run made.
func (c *checker) scenarios() []scenario {
	all := []scenario{
		{"the client repeats its request", (*run).duplicate},
		{"the client repeats its request to the next process", (*run).restarted},
		{"duplicates come at the same time", (*run).concurrent},
		{"two operations of the same content", (*run).twoOperations},
		{"the answer has expired when the client repeats its request", (*run).expires},
		{"the store is down when the request comes", (*run).down},
	}
	for i, p := range c.calls {
		all = append(all, storeScenarios(p, i == 0)...)
	}
	for i, calls := range c.providerCalls {
		for n := 1; n <= calls; n++ {
			all = append(all, providerScenarios(i, n)...)
		}
	}
	for _, table := range c.tables {
		all = append(all, scenario{
			"the database refuses what is written to " + table, func(r *run) { r.refuseWrites(table) },
		})
	}
	return all
}

// storeScenarios returns the scenarios that fail at one call to the store.
func storeScenarios(p Point, first bool) []scenario {
	var all []scenario
	for _, p := range []Point{p, {Call: p.Call, N: p.N, Late: true}} {
		all = append(all,
			scenario{"the store does not answer " + p.String(), func(r *run) {
				r.Faults().LoseReplyAt(p)
				r.failAndSettle(p)
			}},
			scenario{"the process crashes " + p.String(), func(r *run) {
				r.crashes = true
				r.Faults().CrashAt(p)
				r.failAndSettle(p)
			}},
			scenario{"the owner is lost and goes on " + p.String(), func(r *run) {
				r.Faults().LoseOwnerAt(p)
				r.failAndSettle(p)
			}},
			scenario{"the client leaves " + p.String(), func(r *run) { r.clientLeaves(p) }},
		)
	}
	if first {
		return all
	}
	all = append(all, scenario{"the store goes down " + p.String(), func(r *run) {
		r.Faults().Do(p, r.Faults().Down)
		r.attempt(p)
		r.Faults().Up()
		r.settle()
	}})
	if p.Call != "commit" { // other requests wait for an open transaction
		all = append(all, scenario{"the lease ends " + p.String() + ", and the client repeats its request", func(r *run) {
			r.Faults().Do(p, r.overtake)
			r.Send(r.request)
			r.settle()
		}})
	}
	return all
}

// providerScenarios returns the scenarios that fail at one call to a provider.
func providerScenarios(i, n int) []scenario {
	at := fmt.Sprintf("at call %d to the provider", n)
	return []scenario{
		{"the provider cannot be reached " + at, func(r *run) {
			r.config.Providers[i].RefuseCall(r.earlier[i] + n)
			r.Send(r.request)
			r.settle()
		}},
		{"the provider's answer is lost " + at, func(r *run) {
			r.config.Providers[i].LoseReply(r.earlier[i] + n)
			r.Send(r.request)
			r.settle()
		}},
		{"the provider's answer is lost " + at + ", and the process is restarted", func(r *run) {
			r.config.Providers[i].LoseReply(r.earlier[i] + n)
			r.Send(r.request)
			r.Restart()
			r.settle()
		}},
		{"the process is gone " + at, func(r *run) {
			r.config.Providers[i].LoseReply(r.earlier[i] + n)
			r.atCall(i, n, func() { r.Faults().LoseOwner() })
			r.Send(r.request)
			r.Restart()
			r.settle()
		}},
		{"the lease ends " + at + ", and the client repeats its request", func(r *run) {
			r.atCall(i, n, func() {
				if !r.Faults().InTransaction() {
					r.overtake()
				}
			})
			r.Send(r.request)
			r.settle()
		}},
		{"the provider is slow " + at, func(r *run) {
			r.atCall(i, n, r.dawdle)
			r.Send(r.request)
			r.settle()
		}},
	}
}

// attempt sends the request to a process that fails, and checks what is left of a transaction that did not commit.
func (r *run) attempt(p Point) {
	r.Send(r.request)
	if committed := p.Call == "commit" && p.Late; !committed {
		r.judgeRollback()
	}
}

// failAndSettle sends the request into the planned fault. If the process is gone, the next process continues.
func (r *run) failAndSettle(p Point) {
	r.attempt(p)
	if r.Faults().state() != nil {
		r.Restart()
	}
	r.settle()
}

func (r *run) duplicate() {
	first := r.Send(r.request)
	if first.Status != r.checker.status {
		r.report(KindFailed, "", "the same request under another key got %d in an earlier run and now %s: %.200s; "+
			"the runs meet in something that they share, such as a store: build it in the function that makes the world",
			r.checker.status, first, first.Body)
	}
	r.settle()
}

func (r *run) restarted() {
	r.Send(r.request)
	r.Restart()
	r.settle()
}

// duplicates is the number of requests that are sent at the same time.
const duplicates = 4

func (r *run) concurrent() {
	p := r.current()
	var sent sync.WaitGroup
	for range duplicates {
		sent.Go(func() { r.send(r.t.Context(), p, r.request) })
	}
	sent.Wait()
	r.settle()
}

// twoOperations sends the same content under two keys. The answer to the second request is not judged: the service may
// refuse it because of the first.
func (r *run) twoOperations() {
	r.Send(r.request)
	for i := range r.config.Providers {
		r.opCalls = append(r.opCalls, len(r.calls(i)))
	}
	second := r.request
	second.Key = newKey()
	r.Send(second)
}

// expires repeats the request after its answer has expired: the request is executed a second time, and the other system
// has to recognise it.
func (r *run) expires() {
	r.Send(r.request)
	r.mu.Lock()
	retention := r.reservation.Retention
	r.mu.Unlock()
	r.Advance(retention + time.Second)
	r.expired = true
	r.settle()
}

func (r *run) down() {
	r.Faults().Down()
	r.Send(r.request)
	r.Faults().Up()
	r.settle()
}

func (r *run) clientLeaves(p Point) {
	ctx, leave := context.WithCancel(r.t.Context())
	defer leave()
	r.Faults().Do(p, func() {
		r.log.add("client", "leaves")
		leave()
	})
	r.send(ctx, r.current(), r.request)
	r.settle()
}

// overtake ends the lease while its owner works, and sends the request to another process.
func (r *run) overtake() {
	r.mu.Lock()
	lease := r.reservation.Lease
	r.mu.Unlock()
	r.Advance(lease + time.Second)
	r.log.add("service", "another process")
	r.send(r.t.Context(), r.newProcess(), r.request)
}

// atCall calls do when the n-th call of the run to a provider has arrived, before it is answered.
func (r *run) atCall(i, n int, do func()) {
	r.config.Providers[i].watch(func(m int, call ProviderCall) {
		r.called(call)
		if m == r.earlier[i]+n {
			do()
		}
	})
}

// dawdling is the number of moments for which a slow provider works.
const dawdling = 50

// dawdle delays a call, so that a handler that does not wait for the call answers before it ends.
func (r *run) dawdle() {
	for range dawdling {
		if r.sending.Load() == 0 {
			r.report(KindEarly, "call", "the client had its answer while the call to the provider was under way")
			return
		}
		moment()
	}
}

// tablesOf returns the tables of the application, if the store is one that can be made to refuse writes.
func tablesOf(s store.Store) (tables []string) {
	db, ok := store.Find[*sqlite.Store](s)
	if !ok {
		return nil
	}
	rows, err := db.DB().Query(`SELECT name FROM sqlite_master WHERE type = 'table' AND
		name NOT LIKE 'onceward\_%' ESCAPE '\' AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name`)
	if err != nil {
		return nil
	}
	defer func() { _ = rows.Close() }() // it was only read
	for rows.Next() {
		var name string
		if rows.Scan(&name) == nil {
			tables = append(tables, name)
		}
	}
	return tables
}

// refuseWrites makes the database refuse writes to a table, for one request.
func (r *run) refuseWrites(table string) {
	db, _ := store.Find[*sqlite.Store](r.config.Store)
	name := `"` + strings.ReplaceAll(table, `"`, `""`) + `"`
	var begin, end []string
	for _, act := range []string{"INSERT", "UPDATE", "DELETE"} {
		begin = append(begin, `CREATE TRIGGER oncewardtest_`+act+` BEFORE `+act+` ON `+name+
			` BEGIN SELECT RAISE(ABORT, 'oncewardtest: refused'); END`)
		end = append(end, `DROP TRIGGER oncewardtest_`+act)
	}
	r.change(db, begin)
	r.log.add("database", "refuses what is written to %s", table)
	first := r.Send(r.request)
	r.change(db, end)
	r.log.add("database", "accepts everything again")
	if !first.Lost && first.Code == "" && first.Status == r.checker.status {
		r.judge(first)
		return
	}
	r.settle()
}

func (r *run) change(db *sqlite.Store, statements []string) {
	err := db.Update(r.t.Context(), func(tx *sql.Tx) error {
		for _, statement := range statements {
			if _, err := tx.ExecContext(r.t.Context(), statement); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.t.Fatalf("make the database refuse writes: %v", err)
	}
}
