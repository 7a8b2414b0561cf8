package amqp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
)

// The frames that a broker sends, as the client wants to read them.
const (
	methodFrame    = 1
	heartbeatFrame = 8
)

// frame makes a frame of channel 0.
func frame(kind byte, payload []byte) []byte {
	header := binary.BigEndian.AppendUint32([]byte{kind, 0, 0}, uint32(len(payload)))
	return append(append(header, payload...), 0xCE)
}

// greeting is all that a broker says until a connection is open: start, tune and open-ok. It does not depend on what
// the client says meanwhile.
func greeting() []byte {
	start := []byte("\x00\x0a\x00\x0a\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US")
	tune := []byte{0, 10, 0, 30, 0, 0, 0, 2, 0, 0, 0, 60}
	openOK := []byte{0, 10, 0, 41, 0}
	return bytes.Join([][]byte{frame(methodFrame, start), frame(methodFrame, tune), frame(methodFrame, openOK)}, nil)
}

// deafBroker accepts a connection, and then sends heartbeats but never answers anything.
func deafBroker(t *testing.T) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		_, err = conn.Write(greeting())
		for err == nil {
			time.Sleep(5 * time.Millisecond)
			_, err = conn.Write(frame(heartbeatFrame, nil))
		}
	}()
	return "amqp://" + listener.Addr().String()
}

// A broker that still sends heartbeats, but does not answer, is not waited for.
func TestGoodbyeEndsInTime(t *testing.T) {
	t.Parallel()
	conn, err := dial(t.Context(), connSettings{url: deafBroker(t), heartbeat: time.Minute, writeTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- conn.goodbye(100 * time.Millisecond) }()
	defer conn.cut()
	if err := await.Value(t, "the end of goodbye", ended); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
}
