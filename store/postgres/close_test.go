package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// closes closes a store, and checks that it does not take longer than it may.
func closes(t *testing.T, s *postgres.Store) error {
	t.Helper()
	began := time.Now()
	err := s.Close()
	if took := time.Since(began); took > 12*time.Second {
		t.Errorf("closing took %s, want the 5s that are bearable, the 3s behind them, and little more", took)
	}
	return err
}

// TestCloseWithAServerThatHangs: what is under way does not hold up the end, and is told that it was cut off.
func TestCloseWithAServerThatHangs(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, servers.Postgres(t).SchemaURL(t))
	s, err := postgres.Open(t.Context(), proxy.URL(), quiet)
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
	if err := await(t, "the end of what was under way", under); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("L2: what was cut off ended with %v", err)
	}
}

// TestCloseBehindAHandlerThatDoesNotReturn: it is told of, and not waited for until its lease is over.
func TestCloseBehindAHandlerThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	s, err := postgres.Open(t.Context(), servers.Postgres(t).SchemaURL(t), quiet)
	must(t, err)
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := s.Transact(context.Background(), reservation("key"), func(context.Context, store.Verdict) store.Settlement {
			close(begun)
			<-goOn
			return store.Settlement{Action: store.TxRollback}
		})
		ended <- err
	}()
	await(t, "the handler", begun)
	if err := closes(t, s); err == nil {
		t.Error("L2: the end of the store says nothing of the handler")
	}
	close(goOn)
	await(t, "the end of the handler", ended)
}
