package await_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/internal/await"
)

// recorder is a test that keeps its failure.
type recorder struct {
	testing.TB
	failure string
}

func (*recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	panic(r)
}

// failureOf returns how a wait fails its test, and how long the wait took.
func failureOf(wait func(testing.TB)) (failure string, took time.Duration) {
	r, started := &recorder{}, time.Now()
	func() {
		defer func() {
			if p := recover(); p != nil && p != any(r) {
				panic(p)
			}
		}()
		wait(r)
	}()
	return r.failure, time.Since(started)
}

// TestWhatHappensIsAwaited: each wait ends as soon as the event has happened, however late that is.
func TestWhatHappensIsAwaited(t *testing.T) {
	const late = await.Limit - time.Second
	for name, wait := range map[string]func(testing.TB){
		"condition": func(t testing.TB) {
			end := time.Now().Add(late)
			await.That(t, "it is late", func() bool { return !time.Now().Before(end) })
		},
		"success": func(t testing.TB) {
			end := time.Now().Add(late)
			await.Success(t, "it is late", func() error {
				if time.Now().Before(end) {
					return errors.New("early")
				}
				return nil
			})
		},
		"value": func(t testing.TB) {
			values := make(chan int)
			go func() { time.Sleep(late); values <- 7 }()
			if got := await.Value(t, "a number", values); got != 7 {
				t.Errorf("got %d", got)
			}
		},
		"return": func(t testing.TB) { await.Return(t, "sleep", func() { time.Sleep(late) }) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failure, took := failureOf(wait)
				if failure != "" || took < late || took > late+time.Second {
					t.Errorf("it failed with %q after %s", failure, took)
				}
			})
		})
	}
}

// TestWhatDoesNotHappenFails: the failure names what did not happen, and the last error.
func TestWhatDoesNotHappenFails(t *testing.T) {
	over := make(chan struct{})
	for name, c := range map[string]struct {
		wait func(testing.TB)
		want string
	}{
		"condition": {func(t testing.TB) { await.That(t, "pigs fly", func() bool { return false }) }, "until pigs fly"},
		"success": {
			func(t testing.TB) {
				await.Success(t, "pigs fly", func() error { return errors.New("no wings") })
			}, "until pigs fly: no wings",
		},
		"value":  {func(t testing.TB) { await.Value(t, "a pig", make(chan int)) }, "for a pig"},
		"return": {func(t testing.TB) { await.Return(t, "the pig", func() { <-over }) }, "for the pig"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				over = make(chan struct{})
				failure, took := failureOf(c.wait)
				if !strings.HasSuffix(failure, c.want) || took < await.Limit {
					t.Errorf("it failed with %q after %s", failure, took)
				}
				close(over)
			})
		})
	}
}
