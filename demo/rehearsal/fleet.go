package rehearsal

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"
)

// runner is a node, in this process or in one of its own.
type runner interface {
	address() string
	failed() <-chan error
	// close ends it in order, and at once when the context ends.
	close(ctx context.Context) error
}

// fleet is the processes that serve.
type fleet struct {
	program Program
	config  nodeConfig
	members []*member
	// aim sends the provider's webhooks to a process. There is no balancer in front: they go to the one that started last.
	aim func(url string)
	// broken tells of a process that has ended by itself.
	broken chan error
	closed chan struct{}
}

// member is one place in the fleet, over restarts.
type member struct {
	mu     sync.Mutex
	runner runner
	// past are the counters of the runners before, and last is what the present one showed last.
	past, last map[string]int64
}

// startFleet starts so many processes; one alone is this process itself.
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

// start puts a runner into a place.
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

// watch reports a runner that ends by itself.
func (f *fleet) watch(r runner) {
	select {
	case err := <-r.failed():
		select {
		case f.broken <- err:
		default: // one is enough
		}
	case <-f.closed:
	}
}

// urls are where the fleet can be reached, or could until just now.
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

// counts adds up the counters of all processes that there are and were.
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

// lookLimit is how long a process has to show its counters. One that is paused shows none.
const lookLimit = 300 * time.Millisecond

// look reads the counters of the present runner. If it does not answer, those of the last look stand.
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

// retire keeps the counters of a runner that is about to be replaced.
func (m *member) retire(ctx context.Context) {
	m.look(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, n := range m.last {
		m.past[name] += n
	}
	m.last = nil
}

// close ends all processes at the same time: in order, or at once when the context ends.
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

// observing is apart from the clients, who may use up all of their connections.
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
