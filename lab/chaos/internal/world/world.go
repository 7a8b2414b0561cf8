// Package world is where a chaos run takes place: servers, workers and providers as processes of their own, the
// database, and the wires between them; and what can happen to each of them.
package world

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/lab/chaos/internal/node"
	"github.com/onceward/onceward/storeurl"
)

// Config says what a world consists of.
type Config struct {
	// Store is the kind of store: see [Stores].
	Store string
	// Dir is where all files go.
	Dir string
	// Program is what nodes and providers are run from.
	Program string
	// Shifted is a program whose clock is off by what [ShiftVariable] says. Empty if nodes' clocks are not shifted.
	Shifted string
	// Seed begins the faults of the providers.
	Seed uint64
	// Only names the faults that happen. Default: all.
	Only []string
	// Brief ends the faults when their time is over, also if some have not happened yet.
	Brief bool
	// Replicas is how many replicas must have a write before a Redis store counts it as written.
	Replicas int
	// Isolation is the level of the transactions of all nodes. Default: the database's own.
	Isolation sql.IsolationLevel
	// Servers and Workers are how many nodes there are of each kind.
	Servers, Workers int
	// Log makes nodes write logs.
	Log bool
}

// World is a running world.
type World struct {
	Config
	database  database
	network   *network
	acquirer  *Process
	bank      *Process
	servers   []*Process
	workers   []*Process
	callers   []*Process
	fronts    []*wire
	providers []*wire

	// calls are the stores of the callers, past all faults.
	calls []*node.CallerStore

	// window is the one that goes on, and windows how many there were with it.
	window  string
	windows uint64
	// stock is how many places of each item there were at the start of the window, and read how much of each ledger
	// was read before it.
	stock map[string]int64
	read  map[string]int64

	clock sync.Mutex
	// offset is how far the clock of the store and the providers is off for good, set how far it is at present, and
	// leaps how often it has leapt.
	offset, set time.Duration
	leaps       int
	steps       []history.Step
	// began is when the window began by that clock, and ended when it was quiet at last, zero before.
	began, ended time.Time
	// late are the rows that may have been put into a table too late to be found.
	late map[string]bool

	looks sync.Mutex
	// view is the store for those who look at it while the run goes on, nil until the first does.
	view *storeurl.Database

	mu     sync.Mutex
	faults map[string]int
	// firing are the faults that happen at present.
	firing map[string]int
	random *rand.Rand
	// struck is what providers did in this window, and told what each had done when it was asked last.
	struck map[string]int
	told   map[*Process]map[provider.Kind]int
	// failOvers are those of this window.
	failOvers []history.FailOver
	// frontLosses are those since the beginning.
	frontLosses []history.FrontLoss
}

// New builds a world and returns when everything in it runs.
func New(ctx context.Context, config Config) (w *World, err error) {
	w = &World{
		Config: config, network: newNetwork(), told: make(map[*Process]map[provider.Kind]int),
		firing: make(map[string]int),
		random: rand.New(rand.NewPCG(config.Seed, 2)),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.database, err = openDatabase(ctx, w); err != nil {
		return w, err
	}
	if err := w.checkOnly(); err != nil {
		return w, err
	}
	if err := w.checkIsolation(ctx); err != nil {
		return w, err
	}
	if err := w.startClock(ctx); err != nil {
		return w, err
	}
	if err := w.startProviders(); err != nil {
		return w, err
	}
	if err := w.startNodes(ctx); err != nil {
		return w, err
	}
	return w, w.startCallers(ctx)
}

// Begin begins a window: a time of faults that is checked by itself. Its references begin with its name. Providers
// misbehave until [World.Calm].
func (w *World) Begin(ctx context.Context, window string) error {
	w.mu.Lock()
	w.window = window
	w.windows++
	w.faults, w.struck, w.failOvers = make(map[string]int), make(map[string]int), nil
	w.mu.Unlock()
	w.clock.Lock()
	now := history.Now()
	w.began, w.ended, w.late = time.Now().Add(w.offset), time.Time{}, make(map[string]bool)
	w.leaps, w.steps = 0, []history.Step{{Began: now, Ended: now, Clock: w.began.UnixMicro()}}
	w.clock.Unlock()
	w.read = make(map[string]int64)
	for _, p := range []*Process{w.acquirer, w.bank} {
		info, err := os.Stat(w.Ledger(p.name))
		if err != nil {
			return err
		}
		w.read[p.name] = info.Size()
		p.settings.Provider.Faults = providerFaults(w.Seed + w.windows)
		if err := (&provider.Client{URL: p.URL()}).SetFaults(ctx, p.settings.Provider.Faults); err != nil {
			return err
		}
	}
	if err := w.letCall(true); err != nil || w.Plain() {
		return err
	}
	return w.countStock(ctx)
}

// Plain reports whether the store has no tables: nodes serve the routes that need none.
func (w *World) Plain() bool { return w.database.plain() }

// Collects reports whether the store has items in the place of tables, for entries.
func (w *World) Collects() bool {
	_, collects := w.database.(*dynamodb)
	return collects
}

// End forgets what was recorded in a window that was checked, so that files do not grow. What begins before and ends
// after it is left over in the journals.
func (w *World) End(ctx context.Context) error {
	if !w.Plain() {
		if err := w.removeStrays(ctx); err != nil {
			return err
		}
	}
	journals, err := w.Journals()
	if err != nil {
		return err
	}
	errs := make([]error, 0, len(journals))
	for _, path := range journals {
		errs = append(errs, os.Truncate(path, 0)) // nodes append to theirs
	}
	owners, err := os.ReadDir(w.owners())
	for _, file := range owners {
		errs = append(errs, os.Remove(filepath.Join(w.owners(), file.Name())))
	}
	return errors.Join(append(errs, err, w.forgetCalls(ctx))...)
}

// owners is where nodes show which calls they are still at.
func (w *World) owners() string { return filepath.Join(w.Dir, "owners") }

func (w *World) startProviders() error {
	for _, p := range []struct {
		process **Process
		name    string
		dedup   bool
	}{{&w.acquirer, "acquirer", true}, {&w.bank, "bank", false}} {
		*p.process = w.process(p.name, node.Settings{Clock: w.providerClock(), Provider: &provider.Config{
			LedgerPath: w.Ledger(p.name), Dedup: p.dedup,
			Webhook: provider.Webhook{Secret: node.WebhookSecret},
		}})
		if err := (*p.process).Start(); err != nil {
			return err
		}
		wire, err := w.network.lay(p.name, (*p.process).addr)
		if err != nil {
			return err
		}
		w.providers = append(w.providers, wire)
	}
	return nil
}

// Ledger is the file in which a provider writes down what it did.
func (w *World) Ledger(name string) string { return filepath.Join(w.Dir, name+".ledger") }

func (w *World) process(name string, settings node.Settings) *Process {
	return &Process{name: name, dir: w.Dir, program: w.Program, settings: settings}
}

func (w *World) startNodes(ctx context.Context) error {
	if err := os.MkdirAll(w.owners(), 0o755); err != nil {
		return err
	}
	settings := node.Settings{
		Front: w.database.front(), Replicas: w.Replicas, Clock: w.database.clockFile(),
		Owners: w.owners(), Acquirer: "http://" + w.providers[0].addr(), Bank: "http://" + w.providers[1].addr(),
	}
	if w.Log {
		settings.Log = filepath.Join(w.Dir, "nodes.log")
	}
	for i := range w.Servers {
		settings.Store = w.nodeURL()
		settings.Serve, settings.Work = true, i == 0 // one node does both, as small services do
		settings.Generation = 1 + i%2
		server := w.process(fmt.Sprintf("server-%d", i+1), settings)
		w.servers = append(w.servers, server)
		if err := server.Start(); err != nil {
			return err
		}
		front, err := w.network.lay(server.name, server.addr)
		if err != nil {
			return err
		}
		w.fronts = append(w.fronts, front)
	}
	for i := range w.Workers {
		settings.Store = w.nodeURL()
		settings.Serve, settings.Work, settings.Generation = false, true, 2
		worker := w.process(fmt.Sprintf("worker-%d", i+1), settings)
		w.workers = append(w.workers, worker)
		if err := worker.Start(); err != nil {
			return err
		}
	}
	return w.directWebhooks(ctx)
}

// directWebhooks has the acquirer send its events to one of the servers, over the same wire as clients.
func (w *World) directWebhooks(ctx context.Context) error {
	return (&provider.Client{URL: w.acquirer.URL()}).SetWebhook(ctx, w.webhook())
}

func (w *World) webhook() provider.Webhook {
	return provider.Webhook{URL: "http://" + pick(w, w.fronts).addr() + "/events", Secret: node.WebhookSecret}
}

// processes are all that run.
func (w *World) processes() []*Process {
	return slices.Concat(w.nodes(), w.callers, []*Process{w.acquirer, w.bank})
}

// nodes are the servers and the workers.
func (w *World) nodes() []*Process { return slices.Concat(w.servers, w.workers) }

// Collapsed says which processes ended by themselves, which none should.
func (w *World) Collapsed() error {
	var errs []error
	for _, p := range w.processes() {
		errs = append(errs, p.Collapsed())
	}
	return errors.Join(errs...)
}

// Fronts are the URLs of the servers, as clients know them.
func (w *World) Fronts() []string {
	urls := make([]string, len(w.fronts))
	for i, front := range w.fronts {
		urls[i] = "http://" + front.addr()
	}
	return urls
}

// Calm ends all faults: providers behave from now on, and callers only finish what they have ordered. What is paused or down comes back by itself.
func (w *World) Calm(ctx context.Context) error {
	var errs []error
	for _, p := range []*Process{w.acquirer, w.bank} {
		w.noteStruck(ctx, p)
		p.settings.Provider.Faults = provider.Faults{}
		errs = append(errs, (&provider.Client{URL: p.URL()}).ClearFaults(ctx))
	}
	return errors.Join(append(errs, w.letCall(false))...)
}

// Journals are the files in which all lives of all nodes wrote down their calls to the store.
func (w *World) Journals() ([]string, error) {
	return filepath.Glob(filepath.Join(w.Dir, "*"+journalSuffix))
}

// Close ends everything.
func (w *World) Close() error {
	for _, p := range w.processes() {
		if p != nil {
			p.Kill()
		}
	}
	w.network.close()
	var err error
	for _, own := range w.calls {
		err = errors.Join(err, own.Close())
	}
	if w.view != nil {
		err = errors.Join(err, w.view.Close())
	}
	if w.database == nil {
		return err
	}
	return errors.Join(err, w.database.close())
}

// between draws a time.
func (w *World) between(least, most time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return least + time.Duration(w.random.Int64N(int64(most-least)))
}

// pick draws one of several.
func pick[T any](w *World, from []T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return from[w.random.IntN(len(from))]
}
