package watchdog

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestMain has these tests watched too.
func TestMain(m *testing.M) { os.Exit(Over(m).Run()) }

// hangingIn returns what a watcher says at last of tests that stay where they are, but for this one.
func hangingIn(looks int) (hanging []goroutine) {
	var w watcher
	for i := range looks {
		hanging = w.look(stacksAt(i))
	}
	return hanging
}

// waiting reports whether a test is seen where its line says so.
func waiting(line string) bool {
	for _, g := range parse(stacks()) {
		if g.runsTest() && strings.Contains(g.point(), line) {
			return true
		}
	}
	return false
}

// TestHangingTest: it is found when it has not moved for the limit, by its name and the line at which it waits; its
// parent, which waits for it, is not meant.
func TestHangingTest(t *testing.T) {
	never := make(chan struct{})
	for name, test := range map[string]struct {
		hang func(t *testing.T)
		want string
	}{
		"for an event":    {func(*testing.T) { <-never }, "{ <-never }"},
		"in its clean-up": {func(t *testing.T) { t.Cleanup(func() { <-never }) }, "t.Cleanup(func() { <-never })"},
		"in a bubble in which time goes on": {func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				over := make(chan struct{})
				go tick(over)
				waitAndStop(never, over)
			})
		}, "<-never"},
	} {
		never = make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			t.Run(name, test.hang)
		}()
		for !waiting(test.want) {
			runtime.Gosched()
		}
		if early := hangingIn(int(limit / pause)); len(early) > 0 {
			t.Errorf("%s: %s hangs before its time", name, early[0].test())
		}
		hanging := hangingIn(int(limit/pause) + 1)
		if len(hanging) != 1 || !strings.Contains(hanging[0].test(), "TestHangingTest.func") ||
			!strings.Contains(hanging[0].point(), "watchdog_test.go:") {
			t.Errorf("%s: hanging are %+v", name, hanging)
		}
		close(never)
		<-ended
	}
}

// tick is work in a bubble that waits for its next turn, again and again.
func tick(over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(time.Minute):
		}
	}
}

func waitAndStop(never <-chan struct{}, over chan struct{}) {
	<-never
	close(over)
}

// TestMovingTest: one that goes on is left alone, however long it takes.
func TestMovingTest(t *testing.T) {
	var w watcher
	for i := range 100 {
		if hanging := w.look(stacksAt(i)); len(hanging) > 0 {
			t.Errorf("%s hangs, at %s", hanging[0].test(), hanging[0].point())
		}
	}
}

// stacksAt takes the stacks at one of two points, so that its caller moves.
func stacksAt(i int) string {
	if i%2 == 0 {
		return stacks()
	}
	return stacks()
}

// ending is a test that leaves a goroutine, which ends after it.
type ending struct{ after time.Duration }

func (e ending) Run() int {
	go time.Sleep(e.after)
	return 7
}

// TestGoroutinesAreWaitedFor: those that end are waited for, and those that stay are not waited for permanently.
func TestGoroutinesAreWaitedFor(t *testing.T) {
	settling{}.settle(0) // the goroutines of other tests may be about to end
	for name, after := range map[string]time.Duration{"it ends": 300 * time.Millisecond, "it stays": time.Hour} {
		before := runtime.NumGoroutine()
		if code := Settling(ending{after}).Run(); code != 7 {
			t.Errorf("%s: the code is %d", name, code)
		}
		if left := runtime.NumGoroutine() > before; left != (after == time.Hour) {
			t.Errorf("%s: a goroutine is left: %v", name, left)
		}
	}
}

// TestIgnoredGoroutinesAreNotWaitedFor: a goroutine that comes and goes would be waited for as long as it does.
func TestIgnoredGoroutinesAreNotWaitedFor(t *testing.T) {
	settling{}.settle(0)
	begun, over := make(chan struct{}), make(chan struct{})
	before := settling{ignored: []string{"github.com/onceward/onceward/internal/watchdog.restless"}}
	n := before.count()
	go restless(begun, over)
	<-begun
	defer close(over)
	if found := before.count(); found != n {
		t.Errorf("%d goroutines count, want %d", found, n)
	}
	if all := (settling{}).count(); all != n+1 {
		t.Errorf("there are %d goroutines, want %d", all, n+1)
	}
}

func restless(begun chan<- struct{}, over <-chan struct{}) {
	close(begun)
	<-over
}
