package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/limit"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// One scope sprays keys as fast as it can, and is refused at its limit, while requests that have to be served come at
// an even pace. They share the processors with the sprayer, so their latency is for information, and the figure is what
// was served in a second during the attack against before, by turns, of that kind of request which has lost the most.
const (
	sprayedKeys  = 100_000 // in all rounds
	sprayCallers = 4       // without a pause: no processor is idle
	sprayLimit   = 100
	calmTurns    = 2 // so many turns long nobody sprays, in each round
	// visitPace is the time from one request of a kind that has to be served to the next, and visitCallers how many of a
	// kind can be under way.
	visitPace    = 10 * time.Millisecond
	visitCallers = 16
)

// visits are the kinds of requests that have to be served.
var visits = []string{"new key of another scope", "replay of another scope", "replay of the sprayer"}

// sprayedWay is a guard that is attacked.
type sprayedWay struct {
	figure, about string
	mode          onceward.Option
	open          func(ctx context.Context, s *stage, dir string) (
		st store.Store, counters limit.Counters, done func() error, err error,
	)
}

// sprayedWays are all of them. On SQLite, whose calls are work of this process, the sprayer takes the processors that
// the writer needs: how much is left is for information.
var sprayedWays = []sprayedWay{
	{
		"spray-shared", "Redis, shared counters", onceward.Reserved(onceward.FailureUnknown),
		func(ctx context.Context, s *stage, _ string) (store.Store, limit.Counters, func() error, error) {
			st, p, err := openRedis(ctx, s)
			if err != nil {
				return nil, nil, nil, err
			}
			return st, st.Counters(), p.close(st.Close), nil
		},
	},
	{
		"spray-local", "Redis, counters in the process", onceward.Reserved(onceward.FailureUnknown),
		func(ctx context.Context, s *stage, _ string) (store.Store, limit.Counters, func() error, error) {
			st, p, err := openRedis(ctx, s)
			if err != nil {
				return nil, nil, nil, err
			}
			return st, nil, p.close(st.Close), nil
		},
	},
	{
		"spray-sqlite", "SQLite, counters in the process", onceward.Transactional(),
		func(ctx context.Context, _ *stage, dir string) (store.Store, limit.Counters, func() error, error) {
			st, err := sqlite.Open(ctx, filepath.Join(dir, "onceward.db"))
			if err != nil {
				return nil, nil, nil, err
			}
			return st, nil, st.Close, nil
		},
	},
}

// measureSpray compares how others are served while one scope sprays with how they are served before.
func measureSpray(ctx context.Context, o *options, r *report) error {
	t := &table{title: "Requests beside 100,000 sprayed keys, before and during", head: []string{
		"request", "store", "a second", "during", "median ms", "during", "99 % ms", "during",
	}}
	for i := range sprayedWays {
		if w := &sprayedWays[i]; o.wants(w.figure) {
			if err := w.measure(ctx, o, r, t); err != nil {
				return fmt.Errorf("%s: %w", w.figure, err)
			}
		}
	}
	if len(t.rows) > 0 {
		r.keep(t)
	}
	return nil
}

func (w *sprayedWay) measure(ctx context.Context, o *options, r *report, t *table) (err error) {
	dir, err := os.MkdirTemp(o.dir, "onceward-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s, err := openStage(ctx, &storesContest{redis: always, callers: sprayCallers}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	st, counters, done, err := w.open(ctx, s, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	a, err := newAttack(ctx, st, counters, w.mode)
	if err != nil {
		return err
	}
	rates, took := make(series), int64(0)
	for round := range o.rounds {
		for _, sprays := range []bool{false, true} {
			over := make(chan struct{})
			go func() {
				defer close(over)
				if !sprays {
					time.Sleep(calmTurns * o.time)
					return
				}
				started := time.Now()
				a.spray(sprayedKeys*round/o.rounds, sprayedKeys*(round+1)/o.rounds)
				took += int64(time.Since(started))
			}()
			var kinds sync.WaitGroup
			for kind, name := range visits {
				kinds.Go(func() {
					rate := a.visit(kind, over, sprays)
					a.mu.Lock()
					defer a.mu.Unlock()
					rates.add(phase(name, sprays), rate)
				})
			}
			kinds.Wait()
		}
	}
	if err := a.check(); err != nil {
		return err
	}
	lowest := math.Inf(1)
	for kind, name := range visits {
		lowest = min(lowest, rates.ratio(phase(name, true), phase(name, false)))
		row := []string{name, w.about}
		for _, sprays := range []bool{false, true} {
			row = append(row, fmt.Sprintf("%.1f", rates.median(phase(name, sprays))))
		}
		for _, part := range []float64{0.5, 0.99} {
			for _, latencies := range a.latencies {
				row = append(row, fmt.Sprintf("%.1f", quantile(latencies[kind], part)))
			}
		}
		t.add(row...)
	}
	if _, promised := goals[w.figure]; promised {
		r.judge(w.figure, lowest)
	} else {
		r.note("%s: %.2f, without a goal", w.figure, lowest)
	}
	r.note("%s: %d keys sprayed at %s a second, %d executed, %d refused", w.about, sprayedKeys,
		grouped(sprayedKeys/time.Duration(took).Seconds()), a.executed.Load(), a.refused.Load())
	return nil
}

// phase names what is measured of a kind of visit.
func phase(visit string, sprays bool) string { return fmt.Sprintf("%s, sprayed: %t", visit, sprays) }

// attack is a guarded route, and what became of the requests to it.
type attack struct {
	http.Handler
	executed, refused, visitors atomic.Int64

	mu        sync.Mutex
	failed    error
	latencies [2][3][]float64 // before and during, of each kind of visit
}

// The scopes.
const (
	sprayer   = "sprayer"
	bystander = "bystander"
)

func newAttack(ctx context.Context, st store.Store, counters limit.Counters, mode onceward.Option) (*attack, error) {
	quiet := slog.New(slog.DiscardHandler)
	// A machine that is busy must not count as a Redis that cannot be asked: then the node would allow its share beside.
	config := limit.Config{Counters: counters, CounterTimeout: 10 * time.Second, Logger: quiet}
	config.For = func(scope string) limit.Limits {
		if scope == sprayer {
			return limit.Limits{NewKeys: limit.Rate{Limit: sprayLimit, Window: 1000 * time.Hour}, ActiveKeys: sprayLimit}
		}
		return limit.Limits{NewKeys: limit.Rate{Limit: 10_000_000}, ActiveKeys: 10_000_000}
	}
	limiter, err := limit.New(config)
	if err != nil {
		return nil, err
	}
	guard, err := onceward.New(st, onceward.Config{
		Scope:  func(r *http.Request) (string, error) { return r.Header.Get("Authorization"), nil },
		Secret: []byte("a secret of enough random bytes "), Limiter: limiter, Logger: quiet,
	})
	if err != nil {
		return nil, err
	}
	a := &attack{Handler: guard.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	}, mode, onceward.OperationName("pay"))}
	for _, scope := range []string{sprayer, bystander} {
		if status, _ := a.send(ctx, scope, "mine"); status != http.StatusCreated {
			return nil, fmt.Errorf("the first request of the %s was answered with %d", scope, status)
		}
	}
	return a, nil
}

// send sends a request, and returns its status and whether it was replayed.
func (a *attack) send(ctx context.Context, scope, key string) (status int, replayed bool) {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/payments", strings.NewReader(`{"amount":1}`))
	r.Header.Set("Authorization", scope)
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w.Code, w.Header().Get("Idempotent-Replayed") == "true"
}

// spray sends requests under the keys of these numbers.
func (a *attack) spray(from, to int) {
	next := atomic.Int64{}
	next.Store(int64(from))
	_, _ = repeatTimes(sprayCallers, to-from, func(ctx context.Context) error {
		switch status, _ := a.send(ctx, sprayer, fmt.Sprint("sprayed", next.Add(1))); status {
		case http.StatusCreated:
			a.executed.Add(1)
		case http.StatusTooManyRequests:
			a.refused.Add(1)
		default:
			a.fail(fmt.Errorf("a sprayed key was answered with %d", status))
		}
		return nil
	})
}

// visit sends requests of a kind at an even pace until it is over, and returns how many were answered in a second.
func (a *attack) visit(kind int, over <-chan struct{}, during bool) float64 {
	var next atomic.Int64
	var callers sync.WaitGroup
	started := time.Now()
	for range visitCallers {
		callers.Go(func() {
			for {
				n := next.Add(1)
				due := started.Add(time.Duration(n) * visitPace)
				select {
				case <-over:
					next.Add(-1)
					return
				case <-time.After(time.Until(due)):
					a.visitOnce(kind, due, during)
				}
			}
		})
	}
	callers.Wait()
	return float64(next.Load()) / time.Since(started).Seconds()
}

func (a *attack) visitOnce(kind int, due time.Time, during bool) {
	scope, key, replay := bystander, "mine", kind != 0
	switch kind {
	case 0:
		key = fmt.Sprint("visit", a.visitors.Add(1))
	case 2:
		scope = sprayer
	}
	if status, replayed := a.send(context.Background(), scope, key); status != http.StatusCreated || replayed != replay {
		a.fail(fmt.Errorf("a %s was answered with %d, replayed: %t", visits[kind], status, replayed))
	}
	turn := 0
	if during {
		turn = 1
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.latencies[turn][kind] = append(a.latencies[turn][kind], float64(time.Since(due).Microseconds())/1000)
}

func (a *attack) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil {
		a.failed = err
	}
}

// check makes sure that all was answered as it should be: the sprayer's first request counts too.
func (a *attack) check() error {
	if executed := a.executed.Load() + 1; a.failed == nil && executed != sprayLimit {
		return fmt.Errorf("%d keys of the sprayer were executed, want %d", executed, sprayLimit)
	}
	return a.failed
}
