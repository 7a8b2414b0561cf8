package oncewardtest

import (
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// Check sends each request to a service through duplicates, crashes, lost replies and failures, and fails the test for
// each problem that it finds: effects that were made twice, effects that were lost, and calls without the right key.
// Each run uses a world that setup builds, and its own key, and fails at one place. The places are all calls to the
// store and to the providers that the same request makes when nothing fails. After the fault the client retries until
// it has an answer. The runs are deterministic: the same handler gets the same report.
//
// Effects are counted from the beginning of a run. So a store that takes long to create may be shared by all runs, if
// the service accepts the same content under another key.
func Check(t TestingT, setup func(t TestingT) Config, requests ...Request) {
	t.Helper()
	for _, found := range Find(t, setup, requests...) {
		t.Errorf("%s", found)
	}
}

// Find does what [Check] does, but returns the findings.
func Find(t TestingT, setup func(t TestingT) Config, requests ...Request) []Finding {
	t.Helper()
	if len(requests) == 0 {
		t.Fatalf("oncewardtest: Check needs a request to send")
	}
	var found []Finding
	for _, request := range requests {
		c := &checker{test: t, setup: setup, request: request, found: &findings{}}
		c.check()
		found = append(found, c.found.all()...)
	}
	return found
}

// checker checks one request.
type checker struct {
	test    TestingT
	setup   func(t TestingT) Config
	request Request
	found   *findings

	// The following fields describe the request when nothing fails.
	status        int // the status of its answer; zero if it cannot be checked
	unit          map[string]int
	calls         []Point
	providerCalls []int
	keys          []map[string]int // for each provider, the number of keys of each call
	names         map[string]bool  // the names of the calls to providers
	transactional bool
	tables        []string // the tables that can be made to refuse writes
}

// check runs all scenarios, if the request can be checked.
func (c *checker) check() {
	if c.play(scenario{"nothing fails", (*run).clean}); c.status == 0 {
		return
	}
	for _, s := range c.scenarios() {
		c.play(s)
	}
}

// scenario is one run: what is made to fail, in words, and how.
type scenario struct {
	name string
	play func(r *run)
}

// play runs a scenario in its own world.
func (c *checker) play(s scenario) {
	t := newScenarioT(c.test.Context())
	t.run(func() {
		config := c.setup(t)
		config.Guard.ProblemCode = nil // the checker reads the codes
		config.Guard.SettleTimeout = time.Millisecond
		if config.Service == nil || config.Store == nil || config.Clock == nil {
			t.Fatalf("Config needs Service, Store and Clock; NewStore makes the last two")
		}
		r := &run{Kit: newKit(t, config, true), checker: c, name: s.name, request: c.request}
		r.request.Key = newKey()
		r.begin()
		s.play(r)
		r.judgeCalls()
		r.judgeEvents()
	})
	t.end()
	for _, failure := range t.failed() {
		c.found.add(Finding{Kind: KindFailed, Request: c.request, Run: s.name, Detail: failure}, failure)
	}
}

// newKey returns a new key in a form that all syntaxes accept. It is random because runs may share a store.
func newKey() string { return `"oncewardtest-` + rand.Text() + `"` }

// run is the run of a scenario.
type run struct {
	*Kit
	checker *checker
	name    string
	request Request
	before  map[string]int  // the effects before the run
	earlier []int           // for each provider, the number of calls before the run
	blamed  map[string]bool // the effects that were already reported
	opCalls []int           // for each provider, the number of calls of the first of two operations
	expired bool
	crashes bool // work of a handler may outlive the process, which it would not in a real crash
}

func (r *run) report(kind Kind, about, format string, args ...any) {
	r.checker.found.add(Finding{
		Kind: kind, Request: r.checker.request, Run: r.name, Detail: fmt.Sprintf(format, args...), History: r.log.text(),
	}, about)
}

// begin counts the effects and calls that there are already, and observes the calls to the providers.
func (r *run) begin() {
	r.before = r.count()
	for _, p := range r.config.Providers {
		r.earlier = append(r.earlier, len(p.Calls()))
		p.watch(func(_ int, call ProviderCall) { r.called(call) })
	}
}

// count counts the effects of the run.
func (r *run) count() map[string]int {
	counts := make(map[string]int)
	for name, effect := range r.effects {
		counts[name] = effect() - r.before[name]
	}
	return counts
}

// calls returns the calls of the run to a provider.
func (r *run) calls(i int) []ProviderCall { return r.config.Providers[i].Calls()[r.earlier[i]:] }

// lateness is the number of moments that linger waits for effects that come after their answer.
const lateness = 25

// longest is how often the clean run lingers if there is no effect at all.
const longest = 40

// moment lets other goroutines run for a millisecond. Waits count moments instead of time, because time passes on a
// machine that stands still, and no goroutine runs.
func moment() { time.Sleep(time.Millisecond) }

// linger waits for effects that come after their answer.
func linger() {
	for range lateness {
		moment()
	}
}

// nothing reports whether no effect was counted.
func nothing(counts map[string]int) bool {
	return !slices.ContainsFunc(slices.Collect(maps.Values(counts)), func(n int) bool { return n != 0 })
}

// clean is the run in which nothing fails: all other runs are compared with it.
func (r *run) clean() {
	answer := r.Send(r.request)
	r.judgeEvents()
	at := r.count()
	linger()
	unit := r.count()
	for waits := 1; nothing(unit) && answer.Status < http.StatusBadRequest && waits < longest; waits++ {
		linger() // for a goroutine on a busy machine
		unit = r.count()
	}
	r.judgeLateness(at, unit)
	c := r.checker
	switch {
	case c.found.has(KindBypass):
		return // no answer was stored: all other findings would follow from that
	case answer.Lost || answer.Code != "" || answer.Status >= http.StatusInternalServerError:
		r.report(KindFailed, "", "the answer is %s: %.200s%s", answer, answer.Body, deadlockHint(answer))
		return
	case len(r.Faults().Calls()) == 0:
		r.report(KindFailed, "", "the answer is %s, and the guard that Config.Service was given has not asked "+
			"the store: is it a protected route, by that guard?", answer)
		return
	case nothing(unit) && answer.Status < http.StatusBadRequest:
		r.report(KindUncounted, "", "the answer is %s, and each of %v is 0", answer, slices.Sorted(maps.Keys(unit)))
		return
	}
	c.status, c.unit, c.calls = answer.Status, unit, r.Faults().Calls()
	c.transactional = slices.ContainsFunc(c.calls, func(p Point) bool { return p.Call == "transact" })
	c.tables = tablesOf(r.config.Store)
	c.names = make(map[string]bool)
	for i := range r.config.Providers {
		for _, call := range r.calls(i) {
			c.names[call.Method+" "+call.Path] = true
		}
		c.providerCalls = append(c.providerCalls, len(r.calls(i)))
		c.keys = append(c.keys, keysOf(r.calls(i)))
	}
}

// deadlockHint returns why a request may take until its deadline although nothing fails.
func deadlockHint(a *Answer) string {
	if a.Code != "deadline-exceeded" {
		return ""
	}
	return "; a transactional handler that writes past onceward.Tx(ctx) waits for its own transaction"
}

// judgeLateness reports effects that came after the answer.
func (r *run) judgeLateness(at, later map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(later)) {
		if later[name] != at[name] {
			r.report(KindEarly, name, "%s: %d when the client had its answer, %d a moment later", name, at[name], later[name])
		}
	}
}

// maxRetries is how often a client retries.
const maxRetries = 6

// settle repeats the request, and lets leases end, until the answer is final, and then judges the answer.
func (r *run) settle() {
	var last *Answer
	for range maxRetries {
		r.passLease()
		if last = r.Send(r.request); r.final(last) {
			break
		}
	}
	r.judge(last)
}

// final reports whether a client may stop retrying.
func (r *run) final(a *Answer) bool {
	switch {
	case a.Lost:
		return false
	case a.replayed || a.Code == "" && a.Status == r.checker.status:
		return true
	case a.Code == "outcome-unknown":
		return a.Status == http.StatusConflict
	case a.Code != "":
		return !a.retryable
	default:
		return a.Status < http.StatusInternalServerError && a.Status != http.StatusAccepted
	}
}

// passLease ends the lease of an owner that is gone, without letting answers expire.
func (r *run) passLease() {
	r.mu.Lock()
	id, lease := r.reservation.ID, r.reservation.Lease
	r.mu.Unlock()
	if lease == 0 {
		return
	}
	rec, err := r.config.Store.Get(r.t.Context(), id)
	if err == nil && rec.State == store.StateInProgress {
		r.Advance(lease + time.Second)
	}
}

// judge compares the effects with the last answer to the client.
func (r *run) judge(last *Answer) {
	if !r.final(last) && !r.expired { // after the expiry the service may refuse what it has already done
		r.report(KindStuck, "", "after %d retries the client still gets %s: %.200s", maxRetries, last, last.Body)
	}
	told := r.final(last) && last.Code == "" && last.Status < http.StatusBadRequest
	counts := r.count()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		n, unit := counts[name], r.checker.unit[name]
		more, less := n > unit, n < unit
		if unit < 0 {
			more, less = n < unit, n > unit // the effect removes something, such as rows or an amount
		}
		switch {
		case r.blamed[name] || r.expired:
		case more:
			r.report(KindTwice, name, "%s: %d, want %d", name, n, unit)
		case less && told:
			r.report(KindLost, name, "%s: %d, want %d, and the client was told %s", name, n, unit, last)
		}
	}
}

// judgeRollback reports effects that are left after a rollback.
func (r *run) judgeRollback() {
	if !r.checker.transactional {
		return
	}
	counts := r.count()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		called := r.checker.found.has(KindCallInTx) && !slices.Contains(slices.Collect(maps.Keys(r.config.Effects)), name)
		if counts[name] == 0 || called {
			continue
		}
		r.report(KindPastTx, name, "%s: %d after the rollback, want 0", name, counts[name])
		if r.blamed == nil {
			r.blamed = make(map[string]bool)
		}
		r.blamed[name] = true
	}
}

// judgeEvents reports problems that the guard has detected.
func (r *run) judgeEvents() {
	r.mu.Lock()
	events := slices.Clone(r.events)
	r.mu.Unlock()
	for _, e := range events {
		switch e := e.(type) {
		case onceward.SecondConnectionEvent:
			r.report(KindSecondConnection, "", "the handler asked its pool while its transaction held a connection")
		case onceward.BypassedEvent:
			if e.Late {
				r.report(KindEarly, "answer", "something was written to the ResponseWriter after the handler had returned")
				continue
			}
			r.report(KindBypass, "", "an answer of status %d was not written to the guard's ResponseWriter", e.Status)
		}
	}
}

// called records and judges a call to a provider, before the call has its effect.
func (r *run) called(call ProviderCall) {
	r.log.add("provider", "%s %s, %s", call.Method, call.Path, r.log.keyName(call.Key))
	if r.Faults().InTransaction() {
		r.report(KindCallInTx, r.about(call), "%s %s was called while the handler's transaction was open",
			call.Method, call.Path)
	}
	if r.sending.Load() == 0 && !r.crashes {
		r.report(KindEarly, r.about(call), "%s %s was called after the client had its answer", call.Method, call.Path)
	}
}

// about returns the name of a call, which is the same in all runs. A path that the clean run did not use probably
// contains an id of the run, and is left out.
func (r *run) about(call ProviderCall) string {
	name := call.Method + " " + call.Path
	if r.checker.names != nil && !r.checker.names[name] {
		return call.Method
	}
	return name
}

// judgeCalls reports calls with wrong keys or bodies.
func (r *run) judgeCalls() {
	for i := range r.config.Providers {
		calls := r.calls(i)
		bodies := make(map[string]ProviderCall)
		for _, call := range calls {
			name := call.Method + " " + call.Path
			if call.Key == "" {
				if !call.repeatable() {
					r.report(KindNoKey, r.about(call), "%s came without a key", name)
				}
				continue
			}
			if first, ok := bodies[name+call.Key]; ok && first.Body != call.Body {
				r.report(KindOtherBody, r.about(call), "%s under one key: first %.100s, then %.100s", name, first.Body, call.Body)
			} else if !ok {
				bodies[name+call.Key] = call
			}
		}
		switch {
		case r.opCalls != nil:
			r.judgeShared(calls, r.opCalls[i])
		case i < len(r.checker.keys):
			r.judgeKeys(calls, r.checker.keys[i])
		}
	}
}

// judgeKeys reports calls of one operation that used more keys than when nothing fails.
func (r *run) judgeKeys(calls []ProviderCall, clean map[string]int) {
	keys := keysOf(calls)
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if want, ok := clean[name]; ok && keys[name] > want {
			r.report(KindOtherKey, name, "%s of one operation came under %d keys, want %d", name, keys[name], want)
		}
	}
}

// judgeShared reports calls of two operations that used one key. The first operation made the first calls.
func (r *run) judgeShared(calls []ProviderCall, first int) {
	for _, call := range calls[first:] {
		same := func(other ProviderCall) bool {
			return other.Key == call.Key && other.Method == call.Method && other.Path == call.Path
		}
		if call.Key != "" && slices.ContainsFunc(calls[:first], same) {
			r.report(KindSharedKey, r.about(call), "%s %s of two operations came under one key", call.Method, call.Path)
		}
	}
}

// keysOf returns how many keys each call used.
func keysOf(calls []ProviderCall) map[string]int {
	seen := make(map[ProviderCall]bool)
	counts := make(map[string]int)
	for _, call := range calls {
		call.Body = ""
		if call.Key != "" && !seen[call] {
			seen[call] = true
			counts[call.Method+" "+call.Path]++
		}
	}
	return counts
}
