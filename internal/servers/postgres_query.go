package servers

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// These are the messages in the answer to a query: an error, the columns of the result, and a row.
const (
	msgError   = 'E'
	msgColumns = 'T'
	msgRow     = 'D'
)

// protocol3 is the version of PostgreSQL's protocol, in the packet that begins a session.
const protocol3 = 3 << 16

// ask runs statements like Query, on a server without passwords. A start of psql would
// take more processor time than most tests, and the test suite runs thousands of queries.
func (s *PostgresServer) ask(ctx context.Context, address *url.URL, sql string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address.Host)
	if err != nil {
		return "", fmt.Errorf("servers: ask PostgreSQL: %w", err)
	}
	defer conn.Close() // the session has ended, or is given up
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	rows, err := converse(conn, startPacket(address), queryMessage(sql))
	if err != nil {
		return "", fmt.Errorf("servers: ask PostgreSQL: %w", errors.Join(err, ctx.Err()))
	}
	return strings.Join(rows, "\n"), nil
}

// converse begins a session, sends a query, and ends the session.
func converse(conn net.Conn, start, question []byte) (rows []string, err error) {
	in := bufio.NewReader(conn)
	for _, packet := range [][]byte{start, question} {
		if _, err := conn.Write(packet); err != nil {
			return nil, err
		}
		if rows, err = readAnswer(in); err != nil {
			return nil, err
		}
	}
	_, err = conn.Write([]byte{'X', 0, 0, 0, 4})
	return rows, err
}

// startPacket returns a start-up packet for the user, the database and the search_path in a URL.
func startPacket(address *url.URL) []byte {
	body := binary.BigEndian.AppendUint32(nil, protocol3)
	for _, text := range []string{
		"user", address.User.Username(), "database", strings.TrimPrefix(address.Path, "/"),
	} {
		body = append(append(body, text...), 0)
	}
	if path := address.Query().Get("search_path"); path != "" {
		body = append(append(body, "search_path\x00"+path...), 0)
	}
	body = append(body, 0)
	return append(binary.BigEndian.AppendUint32(nil, uint32(4+len(body))), body...)
}

func queryMessage(sql string) []byte {
	packet := binary.BigEndian.AppendUint32([]byte{msgQuery}, uint32(4+len(sql)+1))
	return append(append(packet, sql...), 0)
}

// readAnswer reads until the server is ready for the next query. It returns the rows of the last statement.
func readAnswer(in *bufio.Reader) (rows []string, refused error) {
	for {
		m, err := readMessage(in)
		if err != nil {
			return nil, errors.Join(refused, err) // a server that refuses a session sends the reason, and closes
		}
		switch m.kind() {
		case msgColumns:
			rows = nil
		case msgRow:
			rows = append(rows, textOfRow(m.body()))
		case msgError:
			refused = errors.New(textOfError(m.body()))
		case msgCopyIn:
			return nil, errors.New("there is nothing to copy")
		case msgReady:
			return rows, refused
		}
	}
}

// textOfRow returns the columns of a row, with | between them. NULL is empty.
func textOfRow(body []byte) string {
	columns := make([]string, binary.BigEndian.Uint16(body))
	body = body[2:]
	for i := range columns {
		size := int32(binary.BigEndian.Uint32(body))
		body = body[4:]
		if size > 0 {
			columns[i], body = string(body[:size]), body[size:]
		}
	}
	return strings.Join(columns, "|")
}

// textOfError returns the severity of an error, its message, and its details, as psql shows them.
func textOfError(body []byte) string {
	var said strings.Builder
	for len(body) > 1 {
		field := body[0]
		text, rest := cutText(body[1:])
		switch field {
		case 'S':
			said.WriteString(text + ":  ")
		case 'M':
			said.WriteString(text)
		case 'D':
			said.WriteString("\nDETAIL:  " + text)
		case 'H':
			said.WriteString("\nHINT:  " + text)
		}
		body = rest
	}
	return said.String()
}
