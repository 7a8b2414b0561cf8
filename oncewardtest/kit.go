package oncewardtest

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// Config describes what is tested: a service, its store, and its effects.
type Config struct {
	// Service builds the service for a guard, as the program does when it starts: with the same router and the same
	// routes. It is called for each process of a test; what a process keeps in memory is lost with the process.
	// Required.
	Service func(guard *onceward.Guard) http.Handler
	// Store is the store that all processes share, such as a store of [NewStore]. Required.
	Store store.Store
	// Clock moves the time of the store. Required.
	Clock Advancer
	// Effects count the effects of the service that must happen once, each under a name that reports show: [Rows], or
	// [Provider.Effects]. Messages in the store's outbox and the effects of Providers are always counted. Default: only
	// these.
	Effects map[string]func() int
	// Providers are the other systems that the service calls. Default: none.
	Providers []*Provider
	// Guard is the configuration of the guards. Default: one scope, a fixed secret, no logs, and a SettleTimeout of 1
	// ms, because a store that fails in a test does not recover automatically.
	Guard onceward.Config
}

// Rows returns counters for the rows of tables, for [Config].Effects.
func Rows(db *sql.DB, tables ...string) map[string]func() int {
	effects := make(map[string]func() int)
	for _, table := range tables {
		effects["rows of "+table] = func() (n int) {
			row := db.QueryRow(`SELECT count(*) FROM "` + strings.ReplaceAll(table, `"`, `""`) + `"`)
			if err := row.Scan(&n); err != nil {
				panic(fmt.Sprintf("oncewardtest: count the rows of %s: %v", table, err))
			}
			return n
		}
	}
	return effects
}

// Kit is a service under test: its current process, and the client that sends requests to it.
type Kit struct {
	t       TestingT
	config  Config
	effects map[string]func() int
	log     journal
	checks  bool         // a check uses the kit, and knows which faults are reached
	sending atomic.Int64 // the number of requests that wait for their answers

	mu          sync.Mutex
	process     *process
	reservation store.Reservation // the last reservation
	events      []onceward.ObserverEvent
}

// process is one process of a service, with its own memory.
type process struct {
	faults  *Faults
	guard   *onceward.Guard
	handler http.Handler
}

// New returns a kit with the first process of a service.
func New(t TestingT, config Config) *Kit {
	t.Helper()
	if config.Service == nil || config.Store == nil || config.Clock == nil {
		t.Fatalf("oncewardtest: Config needs Service, Store and Clock; NewStore makes the last two")
	}
	return newKit(t, config, false)
}

func newKit(t TestingT, config Config, checks bool) *Kit {
	k := &Kit{t: t, config: config, checks: checks}
	k.countEffects()
	k.Restart()
	return k
}

// countEffects collects the counters of effects.
func (k *Kit) countEffects() {
	k.effects = maps.Clone(k.config.Effects)
	if k.effects == nil {
		k.effects = make(map[string]func() int)
	}
	for i, p := range k.config.Providers {
		name := "effects at the provider"
		if len(k.config.Providers) > 1 {
			name = fmt.Sprintf("effects at provider %d", i+1)
		}
		k.effects[name] = p.Effects
	}
	if messages, ok := store.As[outbox.Store](k.config.Store); ok {
		k.effects["messages"] = func() int {
			entries, err := messages.Messages(context.Background(), outbox.Filter{Limit: store.MaxPage})
			if err != nil {
				panic(fmt.Sprintf("oncewardtest: list the messages: %v", err))
			}
			return len(entries)
		}
	}
}

// Restart starts the next process, over the same store. The previous process is gone: none of its calls reaches the
// store any more.
func (k *Kit) Restart() {
	k.t.Helper()
	if k.process != nil {
		k.process.faults.LoseOwner()
		k.log.add("service", "a new process")
	}
	p := k.newProcess()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.process = p
}

// newProcess builds a process.
func (k *Kit) newProcess() *process {
	k.t.Helper()
	faults := newFaults(k.config.Store)
	if !k.checks {
		faults = NewFaults(k.t, k.config.Store)
	}
	faults.heard = func(call string, err error) { k.log.call(call, err) }
	faults.reserved = func(r store.Reservation) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.reservation = r
	}
	config := k.config.Guard
	if config.Scope == nil {
		config.Scope = onceward.SingleScope("oncewardtest")
	}
	if config.Secret == nil {
		config.Secret = []byte("the secret of package oncewardtest")
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	config.SettleTimeout = cmp.Or(config.SettleTimeout, time.Millisecond)
	config.Observer = &observer{k, config.Observer}
	guard, err := onceward.New(faults, config)
	if err != nil {
		k.t.Fatalf("oncewardtest: Config.Guard: %v", err)
	}
	return &process{faults, guard, k.config.Service(guard)}
}

// observer records the events of the guard, and passes them to the next observer.
type observer struct {
	kit  *Kit
	next onceward.Observer
}

// Observe implements [onceward.Observer].
func (o *observer) Observe(ctx context.Context, e onceward.ObserverEvent) {
	o.kit.mu.Lock()
	o.kit.events = append(o.kit.events, e)
	o.kit.mu.Unlock()
	if o.next != nil {
		o.next.Observe(ctx, e)
	}
}

// Faults returns the store as the current process sees it, to make it fail.
func (k *Kit) Faults() *Faults { return k.current().faults }

// Guard returns the guard of the current process.
func (k *Kit) Guard() *onceward.Guard { return k.current().guard }

func (k *Kit) current() *process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.process
}

// Advance moves the clock of the store.
func (k *Kit) Advance(d time.Duration) {
	k.log.add("clock", "%s later", d)
	k.config.Clock.Advance(d)
}

// Post sends a JSON body with a key to the current process. A client retries with the same key until it has an answer.
func (k *Kit) Post(path, key, body string) *Answer {
	k.t.Helper()
	r := Post(path, body)
	r.Key = key
	return k.Send(r)
}

// Send sends a request to the current process.
func (k *Kit) Send(r Request) *Answer { return k.send(k.t.Context(), k.current(), r) }

// send sends a request to a process, as a server does: if the handler panics, the answer is lost.
func (k *Kit) send(ctx context.Context, p *process, r Request) *Answer {
	k.log.add("client", "%s, %s", r, k.log.keyName(r.Key))
	request := r.build(ctx, k.keyHeader())
	w := &writer{ResponseRecorder: httptest.NewRecorder()}
	answered, ended := false, make(chan struct{})
	var panicked any
	k.sending.Add(1)
	go func() {
		defer close(ended)
		defer k.sending.Add(-1)
		defer func() { panicked = recover() }()
		p.handler.ServeHTTP(w, request)
		answered = true
	}()
	<-ended
	a := &Answer{
		t: k.t, log: &k.log, request: r, Lost: !answered, Status: w.Code, Header: w.Header(), Body: w.Body.String(),
		replayed: w.Header().Get(cmp.Or(k.config.Guard.ReplayedHeader, "Idempotent-Replayed")) == "true",
	}
	a.readProblem()
	if panicked != nil {
		k.log.add("service", "panic: %v", panicked)
	}
	k.log.add("client", "got %s", a)
	return a
}

func (k *Kit) keyHeader() string {
	if names := k.config.Guard.Keys.Headers; len(names) > 0 {
		return names[0]
	}
	return onceward.DefaultKeyHeader
}

// ExecutedOnce fails the test unless at least one effect was made, and no effect more than once, however many requests
// were sent and whatever failed. It is for requests that make each of their effects once.
func (k *Kit) ExecutedOnce() {
	k.t.Helper()
	total := 0
	for _, name := range slices.Sorted(maps.Keys(k.effects)) {
		n := k.effects[name]()
		total += n
		if n > 1 {
			k.t.Errorf("oncewardtest: ran %d times: %s: want 1\n%s", n, name, k.log.text())
		}
	}
	if total == 0 {
		k.t.Errorf("oncewardtest: nothing was executed: %s are all 0; if there was an effect, count it in Config.Effects\n%s",
			strings.Join(slices.Sorted(maps.Keys(k.effects)), ", "), k.log.text())
	}
}
