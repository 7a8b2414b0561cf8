// Package watchdog ends tests that hang. Without it, a test that hangs, in a wait or in the cleanup after a failure, is
// only noticed when the time of its whole package is over, among the stacks of all other tests. It is for TestMain:
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
	// limit is how long a test may stay at one point. It is longer than
	// await.Limit, so that a failing wait reports its failure first.
	limit = 150 * time.Second
	// pause is the time between two looks at the goroutines.
	pause = 2 * time.Second
	// calmLooks is the number of equal counts of goroutines after which they count as permanent.
	calmLooks = 400
	// betweenLooks is the time between two of these counts.
	betweenLooks = 5 * time.Millisecond
	// maxStacks is the size limit of all stacks, in bytes.
	maxStacks = 16 << 20
)

// Tests are the tests of a package, such as a *testing.M.
type Tests interface{ Run() int }

// Over returns the same tests with a watchdog.
func Over(tests Tests) Tests { return watched{tests} }

// Settling returns the same tests with a watchdog. Run then also waits for their goroutines
// to end: a leak checker waits for less than a second, which is too short on a busy machine.
// Goroutines in an ignored function, given by a prefix of its path, are not waited for.
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

// settle waits until there are no more goroutines than before, or the remaining ones are
// permanent. It counts looks instead of time, because a machine may have stood still.
func (s settling) settle(before int) {
	last, calm := s.count(), 0
	for end := time.Now().Add(limit); last > before && calm < calmLooks && time.Now().Before(end); calm++ {
		time.Sleep(betweenLooks)
		if n := s.count(); n != last {
			last, calm = n, 0
		}
	}
}

// count returns the number of goroutines, without the goroutines in ignored functions.
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

// Run runs the tests. If a test hangs, Run reports it with its position, and ends the process.
func (w watched) Run() int {
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { watch(over) })
	defer watching.Wait()
	defer close(over)
	return w.tests.Run()
}

// watch observes the tests from outside: in a synctest bubble, the clock differs from the
// machine's, and does not stop advancing while a worker of the bubble waits for its next turn.
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

// stacks returns the stacks of all goroutines.
func stacks() string {
	for size := 1 << 18; ; size *= 4 {
		all := make([]byte, size)
		if n := runtime.Stack(all, true); n < size || size >= maxStacks {
			return string(all[:n])
		}
	}
}

// watcher counts for how many looks each test has been at one point. It does not
// use the clock: if a machine stood still for a while, its tests do not hang.
type watcher struct{ seen map[string]sighting }

// sighting is a point, with the number of consecutive looks at which the test was there.
type sighting struct {
	at    string
	looks int
}

// look returns the tests that have stayed at one point for the limit.
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
