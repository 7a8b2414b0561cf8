package redis_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// TestShortPageIsTheLast: who pages through a list, as the resealer and the poller do, takes a short page for the last one.
// A record that goes between the look and the reading does not make one short.
func TestShortPageIsTheLast(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	proxy, prefix := servers.NewRedisProxy(t, server.URL()), server.Prefix(t)
	s, around := open(t, proxy.URL(), redis.WithPrefix(prefix)), open(t, server.URL(), redis.WithPrefix(prefix))
	for i := range 5 {
		_, err := around.Complete(t.Context(), booked(t, around, fmt.Sprint("key", i)), paid("done"))
		must(t, err)
	}
	all, err := s.List(t.Context(), store.Filter{})
	must(t, err)
	done := false
	proxy.Answer(func(command string) bool {
		if strings.HasPrefix(command, "GET "+prefix) && !done {
			done = true
			must(t, around.Bust(context.Background(), all[0].ID, false))
		}
		return false
	}, "", 1)
	seen, f := 0, store.Filter{Limit: 2}
	for {
		page, err := s.List(t.Context(), f)
		must(t, err)
		seen += len(page)
		if len(page) < f.Limit {
			break
		}
		f.After = page[len(page)-1].ID
	}
	if seen != 4 {
		t.Errorf("%d of 4 records were seen by paging", seen)
	}
}

// TestListLeavesOutNothing: a record that is due all the time is listed, although the last one of the page before it
// has gone meanwhile.
func TestListLeavesOutNothing(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	proxy, prefix := servers.NewRedisProxy(t, server.URL()), server.Prefix(t)
	s, around := open(t, proxy.URL(), redis.WithPrefix(prefix)), open(t, server.URL(), redis.WithPrefix(prefix))
	const n, page = 300, 256
	claims := lapsed(t, around, n, "key")
	reads := 0
	proxy.Answer(func(command string) bool {
		if strings.HasPrefix(command, "ZRANGEBYSCORE "+prefix) {
			if reads++; reads == 2 {
				_, err := around.Complete(context.Background(), claims[page-1], paid("done"))
				must(t, err)
			}
		}
		return false
	}, "", 1)
	found, err := s.List(t.Context(), store.Filter{State: store.StateInProgress, Due: true})
	must(t, err)
	if len(found) != n-1 || reads < 2 {
		t.Errorf("%d of %d records are listed after %d pages", len(found), n-1, reads)
	}
}

// TestListEnds: a list of what is in progress ends, and has all that was there all the time, however fast records come
// and go and have their leases extended.
func TestListEnds(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	proxy, prefix := servers.NewRedisProxy(t, server.URL()), server.Prefix(t)
	s, around := open(t, proxy.URL(), redis.WithPrefix(prefix)), open(t, server.URL(), redis.WithPrefix(prefix))
	const n = 300
	claims := make([]store.Claim, n)
	for i := range n {
		claims[i] = booked(t, around, fmt.Sprint("key", i))
	}
	index, entries, reads := prefix+":{000}:o", []string(nil), 0
	proxy.Answer(func(command string) bool {
		if _, key, _ := strings.Cut(command, " "); strings.HasPrefix(command, "Z") && strings.HasPrefix(key, index) {
			reads++
			must(t, around.Extend(context.Background(), claims[reads%n], 2*time.Hour))
			if len(entries) > 0 {
				_, err := server.Do(context.Background(), append([]string{"ZREM", index}, entries...)...)
				must(t, err)
			}
			add := []string{"ZADD", index}
			entries = entries[:0]
			for i := range n {
				entries = append(entries, fmt.Sprint("read", reads, "entry", i))
				add = append(add, fmt.Sprint(time.Now().Add(time.Hour).UnixMicro()), entries[i])
			}
			_, err := server.Do(context.Background(), add...)
			must(t, err)
		}
		return false
	}, "", 1)
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	found, err := s.List(ctx, store.Filter{State: store.StateInProgress})
	if err != nil || len(found) != n || reads < 2 {
		t.Errorf("%d of %d records are listed after %d pages: %v", len(found), n, reads, err)
	}
}

// TestListIsDisturbed: a list in the middle of which the server begins another history, as one that replaces it does,
// fails: it may have left out records.
func TestListIsDisturbed(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t, "enable-debug-command yes")
	proxy := servers.NewRedisProxy(t, server.URL())
	s := open(t, proxy.URL())
	booked(t, s, "open")
	for name, c := range map[string]struct {
		command string
		call    func() error
	}{
		"list of all": {"SCAN", func() error {
			_, err := s.List(t.Context(), store.Filter{})
			return err
		}},
		"list of what is in progress": {"ZSCAN", func() error {
			_, err := s.List(t.Context(), store.Filter{State: store.StateInProgress})
			return err
		}},
		"count": {"EVAL", func() error {
			_, err := s.Stats(t.Context())
			return err
		}},
	} {
		must(t, c.call())
		proxy.Answer(func(command string) bool {
			if strings.HasPrefix(command, c.command) {
				_, err := server.Do(context.Background(), "DEBUG", "CHANGE-REPL-ID")
				must(t, err)
			}
			return false
		}, "", 1)
		err := c.call()
		wantUnavailable(t, err, "a "+name)
		if err == nil || !strings.Contains(err.Error(), "list them again") {
			t.Errorf("a %s: %v", name, err)
		}
		proxy.Disarm()
	}
}

// TestListOnAReplica: a server that was made a replica may not know all records, and lists none.
func TestListOnAReplica(t *testing.T) {
	t.Parallel()
	server, other := servers.NewRedis(t), servers.NewRedis(t)
	s := open(t, server.URL())
	booked(t, s, "open")
	host, port, err := net.SplitHostPort(other.Addr())
	must(t, err)
	_, err = server.Do(t.Context(), "REPLICAOF", host, port)
	must(t, err)
	for _, f := range []store.Filter{{}, {State: store.StateInProgress}, {State: store.StateInProgress, Due: true}} {
		_, err := s.List(t.Context(), f)
		wantUnavailable(t, err, fmt.Sprintf("a list of %+v", f))
	}
	_, err = s.Stats(t.Context())
	wantUnavailable(t, err, "a count")
}

// TestCountLeavesAnswersAlone: to count records takes a few commands for each thousand of them, and reads those alone
// that are unknown.
func TestCountLeavesAnswersAlone(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	proxy := servers.NewRedisProxy(t, server.URL())
	s, around := open(t, proxy.URL()), open(t, server.URL())
	const settled, lost = 1200, 3
	var calls sync.WaitGroup
	for part := range 8 {
		calls.Go(func() {
			for i := range settled / 8 {
				c := booked(t, around, fmt.Sprint("settled ", part, " ", i))
				_, err := around.Complete(t.Context(), c, paid(strings.Repeat("x", 1000)))
				must(t, err)
			}
		})
	}
	calls.Wait()
	for i := range lost {
		must(t, around.Abandon(t.Context(), booked(t, around, fmt.Sprint("lost ", i)), "not known"))
	}
	must(t, around.Bust(t.Context(), booking("settled 0 0").ID, false))
	booked(t, around, "open")

	keys, err := server.Do(t.Context(), "DBSIZE")
	must(t, err)
	before := proxy.Commands()
	stats, err := s.Stats(t.Context())
	must(t, err)
	want := map[store.State]int64{
		store.StateCompleted: settled - 1, store.StateUnknown: lost, store.StateInProgress: 1,
	}
	if !maps.Equal(stats.Records, want) {
		t.Errorf("%v are counted, want %v", stats.Records, want)
	}
	const step, beside = 200, 4 // keys of a step; commands before and after the scan, and one more step
	if n, most := proxy.Commands()-before, int(keys.(int64))/step+beside+lost; n > most {
		t.Errorf("a count of %d records took %d commands, want at most %d", settled, n, most)
	}
}

// TestCountOfARecordThatIsCut: what is left of a record, even a byte, does not keep the others from being counted.
func TestCountOfARecordThatIsCut(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	prefix := server.Prefix(t)
	s := open(t, server.URL(), redis.WithPrefix(prefix))
	booked(t, s, "cut")
	key := one(t, server, prefix, "h:")
	booked(t, s, "whole")
	for size := range 5 {
		_, err := server.Do(t.Context(), "SET", key, "\x02\x01\x00\x00"[:size])
		must(t, err)
		if stats, err := s.Stats(t.Context()); err != nil || stats.Records[store.StateInProgress] == 0 {
			t.Errorf("cut to %d bytes: %+v, %v", size, stats, err)
		}
	}
}
