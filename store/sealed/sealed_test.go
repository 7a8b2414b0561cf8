package sealed_test

import (
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/sealed"
	"github.com/onceward/onceward/store/storetest"
)

// testKey is a key of a test. Its secret is not random, so that golden files can be made with it.
func testKey(id uint32) sealed.Key {
	secret := make([]byte, 32)
	for i := range secret {
		secret[i] = byte(int(id)*31 + i)
	}
	return sealed.Key{ID: id, Secret: secret}
}

// stopped is a clock that a test moves.
type stopped struct {
	mu  sync.Mutex
	now time.Time
}

func (c *stopped) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stopped) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// TestStore: a sealed store is as good as the store inside.
func TestStore(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]sealed.Config{
		"sealed":     {Keys: []sealed.Key{testKey(1)}},
		"all sealed": {Keys: []sealed.Key{testKey(2), testKey(1)}, RefusePlain: true, CompressFrom: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, storetest.Harness{Open: func(t testing.TB) storetest.Instance {
				clock := &stopped{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
				s, err := sealed.New(memory.New(memory.WithClock(clock.read)), config)
				if err != nil {
					t.Fatal(err)
				}
				return storetest.Instance{Store: s, Advance: clock.advance}
			}})
		})
	}
}
