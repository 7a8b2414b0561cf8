package postgres

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/onceward/onceward/internal/await"
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
	begun := &pgproto3.ReadyForQuery{TxStatus: statusInTx}
	refused := &pgproto3.ErrorResponse{Severity: "ERROR", Code: "40001", Message: "serialization"}
	number := &pgproto3.DataRow{Values: [][]byte{make([]byte, 8)}}
	short := &pgproto3.DataRow{Values: [][]byte{{1}}}
	type replies = []pgproto3.BackendMessage
	for name, test := range map[string]struct {
		opens   bool
		replies replies
		foreign bool
	}{
		"its own":               {false, replies{bound, number, complete("SELECT 1"), idle}, false},
		"its own, which opens":  {true, replies{bound, number, complete("SELECT 1"), begun}, false},
		"its own refusal":       {false, replies{refused, idle}, false},
		"a reset":               {false, replies{complete("DISCARD ALL"), idle}, true},
		"rows of a plain query": {false, replies{number, complete("SELECT 1"), idle}, true},
		"nothing":               {false, replies{idle}, true},
		"half of what it is":    {false, replies{bound, idle}, true},
		"no transaction":        {true, replies{bound, number, complete("SELECT 1"), idle}, true},
		"a transaction":         {false, replies{bound, number, complete("SELECT 1"), begun}, true},
		"too few columns":       {false, replies{bound, &pgproto3.DataRow{}, complete("SELECT 1"), idle}, true},
		"its own, and more": {
			false, replies{bound, number, complete("SELECT 1"), bound, number, complete("SELECT 1"), idle}, true,
		},
		"a column of another":   {false, replies{bound, short, complete("SELECT 1"), idle}, true},
		"another and a refusal": {false, replies{bound, short, refused, idle}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := answering(t, test.replies)
			trip := pipeline{conn: conn, unnamed: true, opens: test.opens}
			trip.add(&statement{text: `SELECT 1::bigint`})
			_, err := trip.run(time.Now().Add(await.Limit), func(statement int, raw [][]byte) error {
				if statement != 0 {
					t.Errorf("a row is that of statement %d, and there is one", statement)
				}
				v := values{raw: raw}
				v.int64(0)
				return v.err
			})
			if test.foreign != errors.Is(err, errForeignReply) || test.foreign != conn.IsClosed() {
				t.Errorf("closed: %t, error: %v", conn.IsClosed(), err)
			}
		})
	}
}

// TestCommitAnsweredWithSomethingElse: a reply that is not that to COMMIT does not say that it was refused.
func TestCommitAnsweredWithSomethingElse(t *testing.T) {
	t.Parallel()
	for tag, want := range map[string]error{"COMMIT": nil, "ROLLBACK": errRolledBack, "UPDATE 1": errForeignReply} {
		conn := answering(t, []pgproto3.BackendMessage{
			&pgproto3.BindComplete{}, &pgproto3.CommandComplete{CommandTag: []byte(tag)},
			&pgproto3.ReadyForQuery{TxStatus: statusIdle},
		})
		trip := pipeline{conn: conn, unnamed: true}
		trip.add(&statement{text: `COMMIT`})
		err := trip.runCommit(time.Now().Add(await.Limit), func(int, [][]byte) error { return nil })
		if !errors.Is(err, want) || want == nil && err != nil || conn.IsClosed() != (want == errForeignReply) {
			t.Errorf("%s: closed: %t, error: %v", tag, conn.IsClosed(), err)
		}
	}
}

// TestRepliesToAnotherReservation: what another one was granted has the same form, and is told apart by its nonce; what
// was written for another attempt, or by another kind of statement, by that.
func TestRepliesToAnotherReservation(t *testing.T) {
	t.Parallel()
	number := func(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
	state := func(n int16) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }
	reserved := func(which []byte, nonce string) [][]byte {
		return [][]byte{which, {1}, number(1), {0}, []byte(nonce), number(7)}
	}
	id := [16]byte{1}
	written := func(id [16]byte, attempt int64, now int16) [][]byte {
		return [][]byte{id[:], number(1), number(attempt), state(now), number(0)}
	}
	reserving := item{id: id, kind: kindReserve, row: row{nonce: []byte("mine")}}
	extending, completing := item{id: id, kind: kindExtend, attempt: 7}, item{id: id, kind: kindComplete, attempt: 7}
	for name, test := range map[string]struct {
		shape   shape
		item    item
		row     [][]byte
		foreign bool
	}{
		"its own":            {shape(kindReserve), reserving, reserved(id[:], "mine"), false},
		"another nonce":      {shape(kindReserve), reserving, reserved(id[:], "other"), true},
		"another name":       {shape(kindReserve), reserving, reserved(make([]byte, 16), "mine"), true},
		"a number":           {shape(kindReserve), reserving, reserved(number(1), "mine"), true},
		"an extension":       {shape(kindExtend), extending, written(id, 7, 10), false},
		"another attempt":    {shape(kindExtend), extending, written(id, 8, 10), true},
		"another record":     {shape(kindExtend), extending, written([16]byte{}, 7, 10), true},
		"an answer":          {shape(kindComplete), completing, written(id, 7, 20), false},
		"an extension again": {shape(kindComplete), completing, written(id, 7, 10), true},
	} {
		sent := sending{test.shape, []*item{&test.item}}
		if err := sent.readOutcome(test.row); test.foreign != errors.Is(err, errForeignReply) {
			t.Errorf("%s: %v", name, err)
		}
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
