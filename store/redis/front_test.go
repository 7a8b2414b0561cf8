package redis_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/storetest"
)

// openFront opens a front that is closed with the test, and waits until it knows the time.
func openFront(t testing.TB, url, prefix string) *redis.Front {
	t.Helper()
	f, err := redis.OpenFront(t.Context(), url, redis.WithPrefix(prefix))
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	awaitFront(t, f)
	return f
}

// awaitFront waits until a front is connected and knows the time.
func awaitFront(t testing.TB, f *redis.Front) {
	t.Helper()
	eventually(t, "the front answers and knows the time", func() error {
		if _, err := f.Get(t.Context(), store.ID{Key: "probe"}); err != nil {
			return err
		}
		if f.Now().IsZero() {
			return errNotYet
		}
		return nil
	})
}

func TestFront(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	storetest.RunFront(t, func(t testing.TB) storetest.FrontInstance {
		return storetest.FrontInstance{Front: openFront(t, server.URL(), server.Prefix(t))}
	})
}

var errNotYet = errors.New("not yet")

// TestFrontClock: what a front takes for the server's clock is behind it, by little.
func TestFrontClock(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	f := openFront(t, server.URL(), server.Prefix(t))
	for range 20 {
		now := f.Now()
		reply, err := server.Do(t.Context(), "TIME")
		must(t, err)
		parts := reply.([]any)
		seconds, err := strconv.ParseInt(parts[0].(string), 10, 64)
		must(t, err)
		micros, err := strconv.ParseInt(parts[1].(string), 10, 64)
		must(t, err)
		at := time.Unix(seconds, micros*1000)
		if behind := at.Sub(now); behind < 0 || behind > 5*time.Second {
			t.Errorf("the front's clock says %s, and then the server's %s", now, at)
		}
	}
}
