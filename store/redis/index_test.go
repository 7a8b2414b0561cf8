package redis

import (
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestEarlyAcknowledgement: that WAITAOF does not wait for the disk is said where it is so.
func TestEarlyAcknowledgement(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version, fsync string
		fsynced, says  bool
	}{
		{"7.2.4", "everysec", true, true}, // Valkey claims this version, too
		{"7.4.1", "everysec", true, true},
		{"8.0.0", "everysec", true, false},
		{"7.4.1", "always", true, false},
		{"7.4.1", "everysec", false, false},
	} {
		found := settings{"redis_version": c.version, "appendonly": "yes", "appendfsync": c.fsync}
		said := strings.Join(found.risks(modeSingle, &options{acks: acks{fsynced: c.fsynced}}), "\n")
		if strings.Contains(said, "WAITAOF") != c.says {
			t.Errorf("%+v: the logger is told %q", c, said)
		}
	}
}

// TestOneBucket has a tenant put all records into one bucket, more than a few pages of them: sweeping and listing find what
// they look for, and no command asks for more than a page and the last entry before, or has the server count its way
// to it.
func TestOneBucket(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	proxy, prefix := servers.NewRedisProxy(t, server.URL()), server.Prefix(t)
	quiet := WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	s, err := Open(t.Context(), proxy.URL(), WithPrefix(prefix), quiet)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	const resumed, lost = 2*page + 50, page + 30
	claims := crowdBucket(t, s, resumed+lost, func(i int) store.LostPolicy {
		if i < resumed {
			return store.LostResume
		}
		return store.LostReconcile
	})
	asked := watchIndex(proxy, prefix)
	n := 0
	await.That(t, "the leases are over, and the records swept", func() bool {
		swept, err := s.Sweep(t.Context(), 1000)
		must(t, err)
		n += swept
		return n >= lost
	})
	if n != lost {
		t.Errorf("%d of %d records were swept", n, lost)
	}
	for _, c := range claims[:resumed] {
		must(t, s.Abandon(t.Context(), c, "not known"))
	}
	found := make(map[string]bool)
	f := store.Filter{State: store.StateUnknown, Due: true, Limit: 200}
	for {
		some, err := s.List(t.Context(), f)
		must(t, err)
		if len(some) == 0 {
			break
		}
		for _, rec := range some {
			if found[rec.ID.Key] {
				t.Errorf("%s is listed twice", rec.ID.Key)
			}
			found[rec.ID.Key] = true
		}
		f.After = some[len(some)-1].ID
	}
	if len(found) != resumed+lost {
		t.Errorf("%d of %d records are listed", len(found), resumed+lost)
	}
	asked(t)
}

// crowdBucket makes records in one bucket whose leases are over soon. Many of them are made in one batch, and so have the
// same score.
func crowdBucket(t *testing.T, s *Store, n int, policy func(i int) store.LostPolicy) []store.Claim {
	t.Helper()
	claims := make([]store.Claim, n)
	var calls sync.WaitGroup
	atOnce := make(chan struct{}, 50)
	for i, tried := 0, 0; i < n; tried++ {
		id := store.ID{Scope: "alice", Key: fmt.Sprint("key", tried)}
		if s.names.place(id).number != 7 {
			continue
		}
		r := &store.Reservation{
			ID: id, Operation: "POST /payments", Lease: time.Millisecond, Retention: time.Hour, OnLost: policy(i),
			Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1, Sum: [32]byte{1}}},
		}
		_, _ = rand.Read(r.Nonce[:])
		claim := &claims[i]
		atOnce <- struct{}{}
		calls.Go(func() {
			defer func() { <-atOnce }()
			v, err := s.Reserve(t.Context(), r)
			if err != nil {
				t.Error(err)
			}
			*claim = store.Claim{ID: id, Attempt: v.Record.Attempt}
		})
		i++
	}
	calls.Wait()
	return claims
}

// watchIndex inspects the commands that read indexes. The function that it returns reports what was wrong with them.
func watchIndex(proxy *servers.RedisProxy, prefix string) func(t *testing.T) {
	var mu sync.Mutex
	var wrong []string
	seen := 0
	proxy.Answer(func(command string) bool {
		if strings.HasPrefix(command, "ZRANGEBYSCORE "+prefix) {
			mu.Lock()
			defer mu.Unlock()
			seen++
			offset, count := 0, 0
			_, limits, _ := strings.Cut(command, " LIMIT ")
			if _, err := fmt.Sscan(limits, &offset, &count); err != nil || count > page+1 || offset > page {
				wrong = append(wrong, command)
			}
		}
		return false
	}, "", 1)
	return func(t *testing.T) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if len(wrong) > 0 || seen == 0 {
			t.Errorf("of %d commands %d ask for too much, such as %q", seen, len(wrong), wrong[:min(len(wrong), 1)])
		}
	}
}
