package postgres

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// TestRepliesOfAnotherSession: a pooler that hands a connection on before it has read all of the last client's replies
// gives them to the next client. A round trip takes them for none of its own, and gives the connection up: all later
// replies there would be those to something else.
func TestRepliesOfAnotherSession(t *testing.T) {
	t.Parallel()
	complete := func(tag string) *pgproto3.CommandComplete {
		return &pgproto3.CommandComplete{CommandTag: []byte(tag)}
	}
	bound, idle := &pgproto3.BindComplete{}, &pgproto3.ReadyForQuery{TxStatus: statusIdle}
	refused := &pgproto3.ErrorResponse{Severity: "ERROR", Code: "40001", Message: "serialization"}
	for name, test := range map[string]struct {
		replies []pgproto3.BackendMessage
		foreign bool
	}{
		"its own":            {[]pgproto3.BackendMessage{bound, complete("DELETE 1"), idle}, false},
		"its own refusal":    {[]pgproto3.BackendMessage{refused, idle}, false},
		"a reset":            {[]pgproto3.BackendMessage{complete("DISCARD ALL"), idle}, true},
		"a row":              {[]pgproto3.BackendMessage{&pgproto3.DataRow{}, complete("SELECT 1"), idle}, true},
		"nothing":            {[]pgproto3.BackendMessage{idle}, true},
		"half of what it is": {[]pgproto3.BackendMessage{bound, idle}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := answering(t, test.replies)
			trip := pipeline{conn: conn, unnamed: true}
			trip.add(&statement{text: `DELETE FROM record`})
			_, err := trip.run(time.Now().Add(10*time.Second), func(int, [][]byte) error { return nil })
			if test.foreign != conn.IsClosed() || test.foreign && err == nil {
				t.Errorf("closed: %t, error: %v", conn.IsClosed(), err)
			}
			if name == "a reset" && !errors.Is(err, errForeignReply) {
				t.Errorf("error: %v, want one that names a pooler", err)
			}
		})
	}
}

// answering connects to a server that gives the same replies to each round trip.
func answering(t *testing.T, replies []pgproto3.BackendMessage) *pgx.Conn {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return // the test is over
		}
		defer conn.Close()
		backend := pgproto3.NewBackend(conn, conn)
		if _, err := backend.ReceiveStartupMessage(); err != nil {
			return
		}
		backend.Send(&pgproto3.AuthenticationOk{})
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: statusIdle})
		for backend.Flush() == nil {
			message, err := backend.Receive()
			if err != nil {
				return
			}
			if _, asked := message.(*pgproto3.Sync); asked {
				for _, reply := range replies {
					backend.Send(reply)
				}
			}
		}
	}()
	conn, err := pgx.Connect(t.Context(), "postgres://postgres@"+listener.Addr().String()+"/postgres?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}
