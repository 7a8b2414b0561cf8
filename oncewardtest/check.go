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
// each thing that it finds wrong: what ran twice, what was lost, what was called without the right key. Each run takes
// place in a world that setup builds, under a key of its own, and fails at one place: those are all the calls to the
// store and to the providers that the same request makes when nothing fails. After the fault the client repeats its
// request until it has an answer. Nothing is left to chance: the same handler gets the same report.
//
// Effects are counted from the beginning of a run. So a store that takes long to make may be shared by all runs, if the
// service accepts the same content under another key.
func Check(t TestingT, setup func(t TestingT) Config, requests ...Request) {
	t.Helper()
	for _, found := range Find(t, setup, requests...) {
		t.Errorf("%s", found)
	}
}

// Find is [Check] that returns what it finds.
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

	// What the request does when nothing fails.
	status        int // of its answer; zero if it cannot be checked
	unit          map[string]int
	calls         []Point
	providerCalls []int
	keys          []map[string]int // of each provider, how many keys each of its calls came under
	names         map[string]bool  // of the calls to providers
	transactional bool
	tables        []string // those that can be made to refuse what is written
}

// check plays all scenarios, if the request can be checked.
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

// play runs a scenario in a world of its own.
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

// newKey returns a key that was never used, in a form that all syntaxes accept: runs may share a store.
func newKey() string { return `"oncewardtest-` + rand.Text() + `"` }

// run is one scenario that is played.
type run struct {
	*Kit
	checker *checker
	name    string
	request Request
	before  map[string]int  // the effects that there were before it
	earlier []int           // of each provider, the calls that there were before it
	blamed  map[string]bool // effects of which something was said
	opCalls []int           // of each provider, how many calls the first of two operations made
	expired bool
	crashes bool // what a handler waits for outlives it, which in a real crash it would not
}

func (r *run) report(kind Kind, about, format string, args ...any) {
	r.checker.found.add(Finding{
		Kind: kind, Request: r.checker.request, Run: r.name, Detail: fmt.Sprintf(format, args...), History: r.log.text(),
	}, about)
}

// begin takes down what there is already, and has the run told of the calls to the providers.
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

// lateness is for how many moments effects are waited for that come after their answer.
const lateness = 25

// longest is how often they are waited for if there is none at all.
const longest = 40

// moment lets others run for a millisecond. What waits counts moments instead of time, because a machine that stands
// still lets nothing run meanwhile.
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

// clean is the run in which nothing fails: what it does is what all others are compared with.
func (r *run) clean() {
	answer := r.Send(r.request)
	r.judgeEvents()
	at := r.count()
	linger()
	unit := r.count()
	for waits := 1; nothing(unit) && answer.Status < http.StatusBadRequest && waits < longest; waits++ {
		linger() // a goroutine on a busy machine
		unit = r.count()
	}
	r.judgeLateness(at, unit)
	c := r.checker
	switch {
	case c.found.has(KindBypass):
		return // no answer was stored, so that all else would follow from that
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

// deadlockHint says why a request that nothing hinders may take until its deadline.
func deadlockHint(a *Answer) string {
	if a.Code != "deadline-exceeded" {
		return ""
	}
	return "; a transactional handler that writes past onceward.Tx(ctx) waits for its own transaction"
}

// judgeLateness blames effects that came after the answer.
func (r *run) judgeLateness(at, later map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(later)) {
		if later[name] != at[name] {
			r.report(KindEarly, name, "%s: %d when the client had its answer, %d a moment later", name, at[name], later[name])
		}
	}
}

// maxRetries is how often a client repeats its request.
const maxRetries = 6

// settle lets the client repeat its request until it has an answer that is final, as time goes by, and judges that.
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

// final reports whether a client may stop.
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

// judge compares what was done with what the client was told last.
func (r *run) judge(last *Answer) {
	if !r.final(last) && !r.expired { // else the service may have refused what is there already
		r.report(KindStuck, "", "after %d retries the client still gets %s: %.200s", maxRetries, last, last.Body)
	}
	told := r.final(last) && last.Code == "" && last.Status < http.StatusBadRequest
	counts := r.count()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		n, unit := counts[name], r.checker.unit[name]
		more, less := n > unit, n < unit
		if unit < 0 {
			more, less = n < unit, n > unit // it takes away, such as rows or an amount
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

// judgeRollback blames what a transaction that was rolled back has left behind.
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

// judgeEvents blames what the guard has noticed itself.
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

// called is told of a call before it has its effect.
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

// about is what a call is the same by in all runs. A path that has an id of the run in it is not in the others.
func (r *run) about(call ProviderCall) string {
	name := call.Method + " " + call.Path
	if r.checker.names != nil && !r.checker.names[name] {
		return call.Method
	}
	return name
}

// judgeCalls blames calls by their keys and their bodies.
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

// judgeKeys blames calls of one operation that came under more keys than when nothing fails.
func (r *run) judgeKeys(calls []ProviderCall, clean map[string]int) {
	keys := keysOf(calls)
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if want, ok := clean[name]; ok && keys[name] > want {
			r.report(KindOtherKey, name, "%s of one operation came under %d keys, want %d", name, keys[name], want)
		}
	}
}

// judgeShared blames calls of two operations that came under one key. The first one made that many calls.
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

// keysOf counts the keys that each call came under.
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
