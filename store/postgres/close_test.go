package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// closes closes a store whose end something holds up, and checks that the store does not wait for that.
func closes(t *testing.T, s *postgres.Store) (err error) {
	t.Helper()
	await.Return(t, "close", func() { err = s.Close() })
	return err
}

// TestCloseWithAServerThatHangs: what is under way does not hold up the end, and is told that it was cut off.
func TestCloseWithAServerThatHangs(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, servers.Postgres(t).SchemaURL(t))
	s, err := postgres.Open(t.Context(), proxy.URL(), quiet, postgres.Closing(100*time.Millisecond, await.Limit))
	must(t, err)
	transacted(t, s, "before", nothing)
	release := proxy.HoldReply(matching("onceward_record"))
	t.Cleanup(release)
	caught, under := proxy.Sprung(), make(chan error, 1)
	go func() {
		_, err := s.Get(context.Background(), idOf("before"))
		under <- err
	}()
	awaitCaught(t, proxy, caught+1)
	if err := closes(t, s); err != nil {
		t.Error(err)
	}
	if err := await.Value(t, "the end of what was under way", under); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("L2: what was cut off ended with %v", err)
	}
}

// TestCloseBehindAHandlerThatDoesNotReturn: it is told of, and not waited for until its lease is over.
func TestCloseBehindAHandlerThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	s, err := postgres.Open(t.Context(), servers.Postgres(t).SchemaURL(t), quiet,
		postgres.Closing(100*time.Millisecond, 100*time.Millisecond))
	must(t, err)
	r := reservation("key")
	r.Lease = time.Hour
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := s.Transact(context.Background(), r, func(context.Context, store.Verdict) store.Settlement {
			close(begun)
			<-goOn
			return store.Settlement{Action: store.TxRollback}
		})
		ended <- err
	}()
	await.Value(t, "the handler", begun)
	if err := closes(t, s); err == nil {
		t.Error("L2: the end of the store says nothing of the handler")
	}
	close(goOn)
	await.Value(t, "the end of the handler", ended)
}
