package doctor_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// liar stands before a server and passes on something else than it was told. It returns the server's URL with its own
// address in it. translate passes a client's messages on until one of the two ends.
func liar(t *testing.T, serverURL string, translate func(client *bufio.Reader, server io.Writer) error) string {
	t.Helper()
	u, err := url.Parse(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { carry(client, target, translate) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // clients have left
		running.Wait()
	})
	u.Host = listener.Addr().String()
	return u.String()
}

func carry(client net.Conn, target string, translate func(*bufio.Reader, io.Writer) error) {
	defer func() { _ = client.Close() }() // either side may have ended it
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	go func() {
		defer func() { _ = server.Close() }()
		_ = translate(bufio.NewReader(client), server) // it ends when the client leaves
	}()
	_, _ = io.Copy(client, server) // it ends when the server is closed
}

// postgresLiar replaces the text of statements.
func postgresLiar(t *testing.T, serverURL string, replace func(sql string) string) string {
	return liar(t, serverURL, func(client *bufio.Reader, server io.Writer) error {
		if err := copyMessage(client, server, nil, nil); err != nil { // the start has no kind
			return err
		}
		for {
			kind, err := client.ReadByte()
			if err != nil {
				return err
			}
			if err := copyMessage(client, server, []byte{kind}, func(body []byte) []byte {
				switch kind {
				case 'Q':
					return append([]byte(replace(string(body[:len(body)-1]))), 0)
				case 'P':
					name, rest, _ := bytes.Cut(body, []byte{0})
					sql, types, _ := bytes.Cut(rest, []byte{0})
					return bytes.Join([][]byte{name, []byte(replace(string(sql))), types}, []byte{0})
				default:
					return body
				}
			}); err != nil {
				return err
			}
		}
	})
}

// copyMessage passes one message on: its length, which counts itself, and its body.
func copyMessage(from *bufio.Reader, to io.Writer, head []byte, change func([]byte) []byte) error {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return err
	}
	body := make([]byte, binary.BigEndian.Uint32(length[:])-4)
	if _, err := io.ReadFull(from, body); err != nil {
		return err
	}
	if change != nil {
		body = change(body)
	}
	message := binary.BigEndian.AppendUint32(head, uint32(len(body)+4))
	_, err := to.Write(append(message, body...))
	return err
}

// redisLiar replaces commands.
func redisLiar(t *testing.T, serverURL string, replace func(command []string) []string) string {
	return liar(t, serverURL, func(client *bufio.Reader, server io.Writer) error {
		for {
			command, err := readCommand(client)
			if err != nil {
				return err
			}
			var b bytes.Buffer
			command = replace(command)
			fmt.Fprintf(&b, "*%d\r\n", len(command))
			for _, word := range command {
				fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
			}
			if _, err := server.Write(b.Bytes()); err != nil {
				return err
			}
		}
	})
}

func readCommand(from *bufio.Reader) (words []string, err error) {
	n, err := readLength(from, '*')
	for range n {
		size, err := readLength(from, '$')
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(from, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:size]))
	}
	return words, err
}

func readLength(from *bufio.Reader, kind byte) (int, error) {
	line, err := from.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("%q instead of a length", line)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}
