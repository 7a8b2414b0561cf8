package tiered_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/tiered"
)

// TestMemoryIsBounded: what was used least recently gives way; tombstones do not.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	front := tiered.NewMemory(tiered.MemoryConfig{MaxBytes: 100 << 10})
	end := time.Now().Add(time.Hour)
	name := func(i int) store.ID { return store.ID{Scope: "acme", Key: fmt.Sprint("key ", i)} }
	held := func(i int) bool {
		value, err := front.Get(t.Context(), name(i))
		return err == nil && len(value) > 0
	}
	if err := front.Invalidate(t.Context(), name(-1), time.Hour); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if err := front.Add(t.Context(), name(i), make([]byte, 1<<10), end); err != nil {
			t.Fatal(err)
		}
		if i > 0 && !held(0) {
			t.Fatalf("what is used all the time gave way at %d", i)
		}
	}
	count := 0
	for i := range 1000 {
		if held(i) {
			count++
		}
	}
	if count < 70 || count > 100 || !held(999) || held(1) {
		t.Errorf("%d values of 1 KiB are held in 100 KiB, the newest: %t, the second: %t", count, held(999), held(1))
	}
	_ = front.Add(t.Context(), name(-1), []byte("late"), end)
	if held(-1) {
		t.Error("a tombstone gave way")
	}
	_ = front.Add(t.Context(), name(2000), make([]byte, 100<<10), end)
	if held(2000) || !held(999) {
		t.Error("what is larger than all made the others give way")
	}
}

// TestMemoryDropsTombstones: tombstones that have ended do not pile up.
func TestMemoryDropsTombstones(t *testing.T) {
	bubble(t, func(t *testing.T) {
		front := tiered.NewMemory(tiered.MemoryConfig{})
		for i := range 10_000 {
			_ = front.Invalidate(t.Context(), store.ID{Key: fmt.Sprint(i)}, time.Second)
			time.Sleep(10 * time.Millisecond)
		}
		if n := tiered.Tombstones(front); n > 300 {
			t.Errorf("%d tombstones are kept, of which 100 have not ended", n)
		}
	})
}

// TestMemoryOfTombstones: tombstones count, and those that there is no room for keep everything out until they end.
func TestMemoryOfTombstones(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const most = 100 << 10
		front := tiered.NewMemory(tiered.MemoryConfig{MaxBytes: most})
		add := func(key string) (held bool) {
			id := store.ID{Key: key}
			_ = front.Add(t.Context(), id, []byte("value"), time.Now().Add(24*time.Hour))
			value, _ := front.Get(t.Context(), id)
			return len(value) > 0
		}
		if !add("before") {
			t.Fatal("nothing was added")
		}
		_ = front.Invalidate(t.Context(), store.ID{Key: "long"}, time.Hour)
		for i := range 2000 {
			_ = front.Invalidate(t.Context(), store.ID{Key: fmt.Sprint(i)}, time.Minute)
			if bytes := tiered.Bytes(front); bytes > most {
				t.Fatalf("it holds %d bytes after %d tombstones", bytes, i)
			}
		}
		if value, _ := front.Get(t.Context(), store.ID{Key: "before"}); len(value) > 0 || add("other") || add("long") {
			t.Error("it holds something beside more tombstones than it can hold")
		}
		time.Sleep(time.Hour - time.Nanosecond)
		if add("long") {
			t.Error("a tombstone was forgotten")
		}
		time.Sleep(time.Nanosecond)
		if !add("long") || !add("other") {
			t.Error("nothing is added when the last tombstone has ended")
		}
	})
}

// TestMemoryTakesRoomBack: tombstones that have ended give way to what is added, also where no other is left.
func TestMemoryTakesRoomBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		front := tiered.NewMemory(tiered.MemoryConfig{MaxBytes: 100 << 10})
		for i := range 300 {
			_ = front.Invalidate(t.Context(), store.ID{Key: fmt.Sprint("gone ", i)}, time.Minute)
		}
		time.Sleep(time.Minute)
		for i := range 70 {
			_ = front.Add(t.Context(), store.ID{Key: fmt.Sprint(i)}, make([]byte, 1<<10), time.Now().Add(time.Hour))
		}
		if value, _ := front.Get(t.Context(), store.ID{Key: "0"}); len(value) == 0 {
			t.Errorf("a value gave way to %d tombstones, of which all have ended", tiered.Tombstones(front))
		}
	})
}
