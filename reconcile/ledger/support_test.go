package ledger_test

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func TestMain(m *testing.M) {
	nightly.DrawLess("25")
	goleak.VerifyTestMain(watchdog.Settling(m))
}

var (
	errAway = errors.New("the test pulled the plug")

	quiet = slog.New(slog.DiscardHandler)

	// The clock of a synctest bubble starts with the year 2000.
	noon   = time.Date(1999, 12, 31, 12, 0, 0, 0, time.UTC)
	window = ledger.Window{From: noon.Add(-time.Hour), To: noon}
	inside = noon.Add(-30 * time.Minute)
)

// list makes entries of words like "key=value" that lie well inside of the window.
func list(words string) (entries []ledger.Entry) {
	for word := range strings.FieldsSeq(words) {
		key, value, _ := strings.Cut(word, "=")
		entries = append(entries, ledger.Entry{Key: key, Value: value, At: inside})
	}
	return entries
}

// stream yields the entries, and then fails if there is an error.
func stream(entries []ledger.Entry, err error) iter.Seq2[ledger.Entry, error] {
	return func(yield func(ledger.Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
		if err != nil {
			yield(ledger.Entry{}, err)
		}
	}
}

// behind leaves out the entries up to a key, like a source.
func behind(entries []ledger.Entry, after string) []ledger.Entry {
	i, _ := slices.BinarySearchFunc(entries, after+"\x00", func(e ledger.Entry,
		key string,
	) int {
		return cmp.Compare(e.Key, key)
	})
	return entries[i:]
}

// source lists the entries, which are in order, for any window.
func source(entries []ledger.Entry) ledger.Source {
	return func(_ context.Context, _ ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
		return stream(behind(entries, after), nil)
	}
}

// breaking is a source that does something in place of each of the given entries, once for each.
func breaking(entries []ledger.Entry, breaks func(), at ...int) ledger.Source {
	return func(_ context.Context, _ ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
		rest := behind(entries, after)
		skipped := len(entries) - len(rest)
		return func(yield func(ledger.Entry, error) bool) {
			for i, e := range rest {
				if len(at) > 0 && at[0] <= skipped+i {
					at = at[1:]
					if breaks == nil {
						yield(ledger.Entry{}, errAway)
						return
					}
					breaks()
				}
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

// newStore returns a store whose clock starts when the window has settled.
func newStore() *memory.Store {
	began := time.Now()
	return memory.New(memory.WithClock(func() time.Time { return noon.Add(ledger.DefaultSettle + time.Since(began)) }))
}

// node is what a node makes its comparer of.
type node struct {
	ledger.Config
	store store.Store
}

// config is one of a node that compares the two lists. The first window is the one of the tests.
func config(s store.Store, provider, local string, got *report) node {
	return node{store: s, Config: ledger.Config{
		Name: "test", Logger: quiet, Interval: time.Hour, Since: window.From.Add(ledger.DefaultGrace),
		Provider: source(list(provider)), Local: source(list(local)), Report: got.Report,
	}}
}

// newComparer returns the comparer of a node.
func newComparer(t *testing.T, n node) *ledger.Comparer {
	t.Helper()
	comparer, err := ledger.NewComparer(n.store, n.Config)
	if err != nil {
		t.Fatal(err)
	}
	return comparer
}

// run runs a comparer once, and returns what the one window that is due came to, or has come to so far.
func run(t *testing.T, config node) (ledger.Summary, error) {
	t.Helper()
	comparer := newComparer(t, config)
	compared, err := comparer.RunOnce(t.Context())
	if len(compared) == 1 {
		return compared[0], err
	}
	status, failed := comparer.Status(t.Context())
	if failed != nil || len(status.Uncompared) != 1 {
		t.Fatalf("compared are %v (%v), and the status is %+v, %v", compared, err, status, failed)
	}
	return status.Uncompared[0].Counts, err
}

// report collects findings, as short words.
type report struct {
	mu    sync.Mutex
	words []string
	ids   map[string]string
}

func (r *report) add(f ledger.Finding) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	word := string(f.Kind) + " " + f.Key
	if f.Kind == ledger.KindDuplicate {
		word += " " + string(f.Side) + " " + f.Provider.Value + f.Local.Value
	}
	r.words = append(r.words, word)
	if r.ids == nil {
		r.ids = make(map[string]string)
	}
	r.ids[f.ID] = word
	return nil
}

func (r *report) Report(_ context.Context, f ledger.Finding) error { return r.add(f) }

// take returns what was reported since the last time.
func (r *report) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	words := strings.Join(r.words, ", ")
	r.words = nil
	return words
}

// different returns all findings ever reported, once for each ID.
func (r *report) different() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	words := make([]string, 0, len(r.ids))
	for _, word := range r.ids {
		words = append(words, word)
	}
	slices.Sort(words)
	return words
}
