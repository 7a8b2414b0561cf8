package postgres_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// refusing is a server that takes connections and refuses every statement, as some refuse LISTEN. It returns its URL.
func refusing(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { refuse(ctx, conn) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		serving.Wait()
	})
	return "postgres://postgres@" + listener.Addr().String() + "/postgres?sslmode=disable"
}

// refuse answers one client until that leaves.
func refuse(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer conn.Close()
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	for {
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if backend.Flush() != nil {
			return
		}
		message, err := backend.Receive()
		if _, leaves := message.(*pgproto3.Terminate); leaves || err != nil {
			return
		}
		backend.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "0A000", Message: "LISTEN is not supported"})
	}
}

// TestListenRefused: a store that cannot listen says so and looks for itself (scenario 48), be it for an attempt, for a
// transaction, or for messages.
func TestListenRefused(t *testing.T) {
	t.Parallel()
	book, logging := newLogbook()
	c := newCouple(t, postgres.WithListenURL(refusing(t)), logging)
	eventually(t, "the store has warned", 20*time.Second, func() bool { return len(book.find("LISTEN is not supported")) > 0 })
	c.wantLooking("for an attempt", c.completed())
	for _, ending := range []store.TxAction{store.TxCommit, store.TxCommitAnswer, store.TxRollback} {
		c.wantLooking("for a transaction", c.inFlight(ending))
	}
	if c.waiter.HearsMessages() {
		t.Error("O2: a worker would wait to be told of messages")
	}
	if lines := book.find("cannot listen"); len(lines) > 20 {
		t.Errorf("it said so %d times: it tries too often", len(lines))
	}
}
