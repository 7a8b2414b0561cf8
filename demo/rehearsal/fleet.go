package rehearsal

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"
)

// runner is a node, in this process or in a child process.
type runner interface {
	address() string
	failed() <-chan error
	// close shuts the node down, and kills it when the context ends.
	close(ctx context.Context) error
}

// fleet is the processes that serve.
type fleet struct {
	program Program
	config  nodeConfig
	members []*member
	// aim sets where the provider sends its webhooks. There is no
	// load balancer: they go to the process that started last.
	aim func(url string)
	// broken receives the error of a process that ended unexpectedly.
	broken chan error
	closed chan struct{}
}

// member is one place in the fleet, which several processes take one after the other.
type member struct {
	mu     sync.Mutex
	runner runner
	// past is the counters of earlier runners, and last the latest counters of the current runner.
	past, last map[string]int64
}

// startFleet starts the processes. If the size is one, it is this process.
func startFleet(
	ctx context.Context, program Program, config nodeConfig, size int, aim func(url string),
) (*fleet, error) {
	f := &fleet{program: program, config: config, aim: aim, broken: make(chan error, 1), closed: make(chan struct{})}
	for range size {
		m := &member{past: make(map[string]int64)}
		start := func() (runner, error) { return startProcess(program, config) }
		if size == 1 {
			start = func() (runner, error) { return startNode(ctx, program, config) }
		}
		if err := f.start(m, start); err != nil {
			return nil, errors.Join(err, f.close(ctx))
		}
		f.members = append(f.members, m)
	}
	return f, nil
}

// start starts a runner for a place.
func (f *fleet) start(m *member, start func() (runner, error)) error {
	r, err := start()
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.runner = r
	m.mu.Unlock()
	f.aim(r.address() + "/events")
	go f.watch(r)
	return nil
}

// watch reports a runner that ends unexpectedly.
func (f *fleet) watch(r runner) {
	select {
	case err := <-r.failed():
		select {
		case f.broken <- err:
		default: // one error is enough
		}
	case <-f.closed:
	}
}

// urls returns the URLs of the fleet. A process may have ended since.
func (f *fleet) urls() []string {
	urls := make([]string, len(f.members))
	for i, m := range f.members {
		urls[i] = m.current().address()
	}
	return urls
}

func (m *member) current() runner {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runner
}

// counts returns the sums of the counters of all current and earlier processes.
func (f *fleet) counts(ctx context.Context) map[string]int64 {
	var all sync.WaitGroup
	for _, m := range f.members {
		all.Go(func() { m.look(ctx) })
	}
	all.Wait()
	sum := make(map[string]int64)
	for _, m := range f.members {
		m.addTo(sum)
	}
	return sum
}

// lookLimit is the time in which a process must return its counters. A paused process returns none.
const lookLimit = 300 * time.Millisecond

// look reads the counters of the current runner. If it does not answer, the previous counters remain valid.
func (m *member) look(ctx context.Context) {
	runner := m.current()
	counts := make(map[string]int64)
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if err := getJSON(ctx, runner.address()+"/counters", &counts); err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.runner == runner {
		m.last = counts
	}
}

func (m *member) addTo(sum map[string]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, counts := range []map[string]int64{m.past, m.last} {
		for name, n := range counts {
			sum[name] += n
		}
	}
}

// retire keeps the counters of a runner that will be replaced.
func (m *member) retire(ctx context.Context) {
	m.look(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, n := range m.last {
		m.past[name] += n
	}
	m.last = nil
}

// close shuts all processes down at the same time, and kills them when the context ends.
func (f *fleet) close(ctx context.Context) error {
	close(f.closed)
	errs := make([]error, len(f.members))
	var all sync.WaitGroup
	for i, m := range f.members {
		all.Go(func() { errs[i] = m.current().close(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// observing is separate from the clients, which may use all of their connections.
var observing = &http.Client{Transport: &http.Transport{}}

func getJSON(ctx context.Context, url string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := observing.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return json.NewDecoder(response.Body).Decode(into)
}
