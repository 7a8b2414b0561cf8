package world

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
)

// serveTCP serves connections until the test ends.
func serveTCP(t *testing.T, serve func(conn net.Conn)) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return listener.Addr().String()
}

func layWire(t *testing.T, to string) *wire {
	t.Helper()
	n := newNetwork()
	t.Cleanup(n.close)
	w, err := n.lay("server", to)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func dialWire(t *testing.T, w *wire) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", w.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(await.Limit)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// echo sends some bytes and returns what comes back of them, after how long.
func echo(conn net.Conn, bytes int) (back int, took time.Duration, err error) {
	began := time.Now()
	if _, err = conn.Write(make([]byte, bytes)); err != nil {
		return 0, 0, err
	}
	back, err = io.ReadFull(conn, make([]byte, bytes))
	return back, time.Since(began), err
}

func echoServer(conn net.Conn) { _, _ = io.Copy(conn, conn) }

// begin makes a wire bad until the returned function is called, which waits for the end.
func begin(t *testing.T, w *wire, how trouble, direction int) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		w.suffer(ctx, how, direction, time.Hour)
	}()
	await.That(t, "the trouble has begun", func() bool { return len(w.current(direction)) > 0 })
	return func() {
		cancel()
		<-over
	}
}

// awaitLoss waits until a wire has taken something and lost it.
func awaitLoss(t *testing.T, w *wire, direction int) {
	t.Helper()
	await.That(t, "the wire has lost something", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for l := range w.links {
			if l.lost[direction].Load() {
				return true
			}
		}
		return false
	})
}

func TestTroublesOfAWire(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]trouble{"slow": slow, "trickling": trickling} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := layWire(t, serveTCP(t, echoServer))
			conn := dialWire(t, w)
			end := begin(t, w, how, toServer)
			if n, took, err := echo(conn, 512); n != 512 || err != nil || took < 50*time.Millisecond {
				t.Errorf("%d of 512 bytes came back after %v: %v", n, took, err)
			}
			end()
			if n, _, err := echo(conn, 512); n != 512 || err != nil {
				t.Errorf("the connection did not survive it: %d bytes, %v", n, err)
			}
		})
	}
	t.Run("cut short", func(t *testing.T) {
		t.Parallel()
		w := layWire(t, serveTCP(t, echoServer))
		conn := dialWire(t, w)
		defer begin(t, w, cutShort, fromServer)()
		if n, _, err := echo(conn, 512); n != 40 || err == nil {
			t.Errorf("%d bytes came back (%v), want 40 and the end", n, err)
		}
	})
	t.Run("losing", func(t *testing.T) {
		t.Parallel()
		arrived := make(chan int, 1)
		w := layWire(t, serveTCP(t, func(conn net.Conn) {
			n, _ := conn.Read(make([]byte, 8))
			arrived <- n
		}))
		conn := dialWire(t, w)
		end := begin(t, w, losing, toServer)
		if _, err := conn.Write([]byte("lost")); err != nil {
			t.Fatal(err)
		}
		awaitLoss(t, w, toServer) // what the wire takes after the end would pass
		end()
		if n, err := conn.Read(make([]byte, 8)); n != 0 || err == nil {
			t.Errorf("read %d bytes (%v), want the end of the connection", n, err)
		}
		if n := <-arrived; n != 0 {
			t.Errorf("%d bytes arrived", n)
		}
	})
	t.Run("resetting", func(t *testing.T) {
		t.Parallel()
		w := layWire(t, serveTCP(t, echoServer))
		old := dialWire(t, w)
		if n, _, err := echo(old, 8); n != 8 || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		end := begin(t, w, resetting, fromServer)
		_, err := old.Read(make([]byte, 8))
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the old connection ends with %v, want a reset", err)
		}
		fresh, err := net.Dial("tcp", w.addr())
		if err == nil { // the reset may come before it is made
			_, err = fresh.Read(make([]byte, 8))
			fresh.Close()
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a new connection ends with %v, want a reset", err)
		}
		end()
		if n, _, err := echo(dialWire(t, w), 8); n != 8 || err != nil {
			t.Errorf("afterwards: %d bytes, %v", n, err)
		}
	})
}

func TestSnappedWire(t *testing.T) {
	t.Parallel()
	w := layWire(t, serveTCP(t, echoServer))
	old := dialWire(t, w)
	ctx, cancel := context.WithCancel(t.Context())
	mended := make(chan error, 1)
	go func() { mended <- w.snap(ctx, time.Hour) }()
	if _, err := old.Read(make([]byte, 8)); err == nil {
		t.Error("the connection was not cut")
	}
	if conn, err := net.Dial("tcp", w.addr()); err == nil {
		conn.Close()
		t.Error("a wire that is cut takes connections")
	}
	cancel()
	if err := <-mended; err != nil {
		t.Fatal(err)
	}
	if n, _, err := echo(dialWire(t, w), 8); n != 8 || err != nil {
		t.Errorf("the mended wire: %d bytes, %v", n, err)
	}
}

// TestWireHealsWhileConnectionsBreak: a fault ends, also if the wire is cut and its connections break at that moment.
func TestWireHealsWhileConnectionsBreak(t *testing.T) {
	t.Parallel()
	w := layWire(t, serveTCP(t, func(conn net.Conn) { // it talks without end
		for {
			if _, err := conn.Write(make([]byte, 512)); err != nil {
				return
			}
		}
	}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 16 {
		go func() { // clients that break their connections
			for ctx.Err() == nil {
				conn, err := net.Dial("tcp", w.addr())
				if err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				_, _ = io.CopyN(io.Discard, conn, 4096)
				_ = conn.(*net.TCPConn).SetLinger(0)
				_ = conn.Close()
			}
		}()
	}
	for i := range 100 {
		done := make(chan error, 2)
		go func() {
			w.suffer(ctx, slow, fromServer, 5*time.Millisecond)
			done <- nil
		}()
		go func() { done <- w.snap(ctx, 2*time.Millisecond) }()
		for range 2 {
			if err := await.Value(t, "the end of a fault", done); err != nil {
				t.Fatalf("fault %d: %v", i, err)
			}
		}
	}
}

// TestNothingBehindAGap: what follows lost bytes does not arrive, because TCP has no gaps: a client would take the answer
// to one request for that to another.
func TestNothingBehindAGap(t *testing.T) {
	t.Parallel()
	next := make(chan string)
	w := layWire(t, serveTCP(t, func(conn net.Conn) {
		for text := range next {
			_, _ = conn.Write([]byte(text)) // the wire may have ended the connection
		}
	}))
	conn := dialWire(t, w)
	next <- "first"
	if _, err := io.ReadFull(conn, make([]byte, len("first"))); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.troubles[fromServer] = []*trouble{{lose: true}}
	w.mu.Unlock()
	next <- "lost"
	awaitLoss(t, w, fromServer)
	if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v: want nothing", n, err)
	}
	w.mu.Lock()
	w.troubles[fromServer] = nil
	w.mu.Unlock()
	if err := conn.SetReadDeadline(time.Now().Add(await.Limit)); err != nil {
		t.Fatal(err)
	}
	next <- "behind"
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v: want the end of the connection", n, err)
	}
	close(next)
}
