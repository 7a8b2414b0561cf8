// Package watchdog ends tests that hang. A test that is stuck, in what it waits for or in cleaning up behind a failure,
// would otherwise be noticed when the time of its whole package is over, among the stacks of all the others. It is for
// TestMain alone:
//
//	func TestMain(m *testing.M) { os.Exit(watchdog.Over(m).Run()) }
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }
package watchdog

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// limit is how long a test may stay at one point: longer than await.Limit, so that a wait that fails says so itself
	// first.
	limit = 150 * time.Second
	// pause is the time between two looks.
	pause = 2 * time.Second
	// calmLooks is how often goroutines are counted that are as many each time before they count as those that stay.
	calmLooks = 400
	// betweenLooks is the time between two of these counts.
	betweenLooks = 5 * time.Millisecond
	// maxStacks bounds a look, in bytes.
	maxStacks = 16 << 20
)

// Tests are those of a package, such as a *testing.M.
type Tests interface{ Run() int }

// Over returns the same tests with a watchdog over them.
func Over(tests Tests) Tests { return watched{tests} }

// Settling returns the same tests with a watchdog over them, which end when their goroutines have ended: a check for
// leaks waits for less than a second, which a busy machine may need. A goroutine that is in an ignored function, named
// by the beginning of its path, is not waited for.
func Settling(tests Tests, ignored ...string) Tests { return settling{watched{tests}, ignored} }

type settling struct {
	watched
	ignored []string
}

// Run runs the tests, and waits for their goroutines.
func (s settling) Run() int {
	before := s.count()
	defer s.settle(before)
	return s.watched.Run()
}

// settle waits until no more goroutines are left than there were before, or those that are left stay. It counts its
// looks, and not the time, in which a machine may have stood still.
func (s settling) settle(before int) {
	last, calm := s.count(), 0
	for end := time.Now().Add(limit); last > before && calm < calmLooks && time.Now().Before(end); calm++ {
		time.Sleep(betweenLooks)
		if n := s.count(); n != last {
			last, calm = n, 0
		}
	}
}

// count returns how many goroutines there are, without the ones in ignored functions.
func (s settling) count() (n int) {
	if len(s.ignored) == 0 {
		return runtime.NumGoroutine()
	}
	for _, g := range parse(stacks()) {
		if !slices.ContainsFunc(g.frames, s.ignores) {
			n++
		}
	}
	return n
}

func (s settling) ignores(f frame) bool {
	return slices.ContainsFunc(s.ignored, func(beginning string) bool { return strings.HasPrefix(f.function, beginning) })
}

type watched struct{ tests Tests }

// Run runs the tests. If one hangs it reports which, and where, and ends the process.
func (w watched) Run() int {
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { watch(over) })
	defer watching.Wait()
	defer close(over)
	return w.tests.Run()
}

// watch looks at the tests from outside: the clock of one that runs in a synctest bubble is not that of the machine,
// and goes on without an end while a worker of the bubble waits for its next turn.
func watch(over <-chan struct{}) {
	var w watcher
	for {
		select {
		case <-over:
			return
		case <-time.After(pause):
		}
		if hanging := w.look(stacks()); len(hanging) > 0 {
			for _, g := range hanging {
				fmt.Fprintf(os.Stderr, "FAIL: %s hangs: for %s it has been in %s\n%s\n",
					g.test(), limit, g.point(), g.text)
			}
			os.Exit(2)
		}
	}
}

// stacks are those of all goroutines.
func stacks() string {
	for size := 1 << 18; ; size *= 4 {
		all := make([]byte, size)
		if n := runtime.Stack(all, true); n < size || size >= maxStacks {
			return string(all[:n])
		}
	}
}

// watcher knows for how many looks each test has been at one point. It does not go by the clock: a machine that stood
// still for a while is no test that hangs.
type watcher struct{ seen map[string]sighting }

// sighting is a point, and how often the test was seen there in a row.
type sighting struct {
	at    string
	looks int
}

// look returns the tests that have not moved for the limit.
func (w *watcher) look(stacks string) (hanging []goroutine) {
	seen := make(map[string]sighting)
	for _, g := range parse(stacks) {
		if !g.runsTest() {
			continue
		}
		s := w.seen[g.id]
		if at := g.position(); s.at != at {
			s = sighting{at: at}
		}
		s.looks++
		seen[g.id] = s
		if s.looks > int(limit/pause) {
			hanging = append(hanging, g)
		}
	}
	w.seen = seen
	return hanging
}
