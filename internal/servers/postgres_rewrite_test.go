package servers

import (
	"encoding/binary"
	"strings"
	"testing"
)

// clientMessage is what a client sends, with its length.
func clientMessage(kind byte, body string) message {
	m := append([]byte{kind}, binary.BigEndian.AppendUint32(nil, uint32(4+len(body)))...)
	return append(m, body...)
}

// TestDisguiseOfMessages: statements are read differently, with the length that they have then, and values are not.
func TestDisguiseOfMessages(t *testing.T) {
	t.Parallel()
	p := new(Proxy)
	p.Rewrite("READ COMMITTED", "SERIALIZABLE")
	for name, each := range map[string]struct {
		kind       byte
		body, want string
	}{
		"a simple query":     {msgQuery, "BEGIN READ COMMITTED\x00", "BEGIN SERIALIZABLE\x00"},
		"twice in one":       {msgQuery, "READ COMMITTED, READ COMMITTED\x00", "SERIALIZABLE, SERIALIZABLE\x00"},
		"a prepared one":     {msgParse, "name\x00BEGIN READ COMMITTED\x00\x00\x00", "name\x00BEGIN SERIALIZABLE\x00\x00\x00"},
		"another text":       {msgQuery, "SELECT 1\x00", "SELECT 1\x00"},
		"the value of a row": {'B', "READ COMMITTED", "READ COMMITTED"},
	} {
		got, want := p.disguise.statement(clientMessage(each.kind, each.body)), clientMessage(each.kind, each.want)
		if string(got) != string(want) {
			t.Errorf("%s is read as %q, want %q", name, got, want)
		}
	}
}

// TestDeniedMessages: a simple query that matches is answered, by an error and the readiness for the next.
func TestDeniedMessages(t *testing.T) {
	t.Parallel()
	p := new(Proxy)
	p.Deny(func(sql string) bool { return strings.HasPrefix(sql, "LISTEN") }, "0A000")
	answer := string(p.disguise.refuses(clientMessage(msgQuery, "LISTEN channel\x00")))
	if !strings.HasPrefix(answer, "E") || !strings.Contains(answer, "C0A000\x00") ||
		!strings.HasSuffix(answer, "Z\x00\x00\x00\x05I") {
		t.Errorf("it is answered with %q", answer)
	}
	if length := binary.BigEndian.Uint32([]byte(answer[1:])); int(length)+1 != len(answer)-len("Z\x00\x00\x00\x05I") {
		t.Errorf("the error has the length %d of %d bytes", length, len(answer))
	}
	for _, sent := range []message{
		clientMessage(msgQuery, "SELECT 1\x00"), clientMessage(msgParse, "\x00LISTEN channel\x00"),
	} {
		if answer := p.disguise.refuses(sent); answer != nil {
			t.Errorf("%q is answered with %q", sent, answer)
		}
	}
}

// TestDisguisedServer: clients meet a server that behaves as the proxy says.
func TestDisguisedServer(t *testing.T) {
	t.Parallel()
	shared := Postgres(t)
	proxy := NewProxy(t, shared.URL())
	proxy.Rewrite("'before'", "'read otherwise'")
	proxy.Deny(func(sql string) bool { return strings.HasPrefix(sql, "LISTEN") }, "0A000")
	through := &PostgresServer{server: server{kind: "PostgreSQL", url: proxy.URL()}, programs: shared.programs}
	wantAnswer(t, through, "SELECT 'before'", "read otherwise")
	err := through.Exec(t.Context(), "LISTEN channel")
	if err == nil || !strings.Contains(err.Error(), "does not do that") {
		t.Errorf("it listens: %v", err)
	}
	wantAnswer(t, through, "SELECT 1", "1")
}
