package redis_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

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
