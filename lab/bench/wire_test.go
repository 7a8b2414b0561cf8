package main

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
)

// wired returns the two ends of a connection, the first of them behind a wire.
func wired(t *testing.T, delay time.Duration) (near, far net.Conn) {
	t.Helper()
	w, err := newWire(delay)
	if err != nil {
		t.Fatal(err)
	}
	near, far = net.Pipe()
	near = w.connect(near)
	t.Cleanup(func() {
		if err := errors.Join(near.Close(), far.Close(), w.close()); err != nil {
			t.Error(err)
		}
	})
	return near, far
}

func write(t *testing.T, to net.Conn, text string) {
	t.Helper()
	if _, err := to.Write([]byte(text)); err != nil {
		t.Error(err)
	}
}

func read(t *testing.T, from net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(from, got); err != nil || string(got) != want {
		t.Errorf("read %q, %v; want %q", got, err, want)
	}
}

// TestWire holds replies to their delay, and what is sent to none.
func TestWire(t *testing.T) {
	const delay = 30 * time.Millisecond
	near, far := wired(t, delay)
	started := time.Now()
	go write(t, near, "ask")
	read(t, far, "ask")
	write(t, far, "answer")
	read(t, near, "answer")
	if took := time.Since(started); took < delay {
		t.Errorf("a round trip took %s, want %s at least", took, delay)
	}
}

// TestWireKeepsPipelines has replies that are sent one after the other come so, not each a delay after the one before.
func TestWireKeepsPipelines(t *testing.T) {
	const delay, replies = 5 * await.Limit / 200, 50 // together they would be longer than the limit
	near, far := wired(t, delay)
	started := time.Now()
	go func() {
		for range replies {
			write(t, far, "x")
		}
	}()
	await.Return(t, "the replies", func() {
		for range replies {
			read(t, near, "x")
		}
	})
	if took := time.Since(started); took < delay {
		t.Errorf("%d replies took %s, want %s at least", replies, took, delay)
	}
}

// TestWireEnds checks what clients rely on when a connection ends: what came before is read first.
func TestWireEnds(t *testing.T) {
	near, far := wired(t, 5*time.Millisecond)
	go func() {
		write(t, far, "last words")
		_ = far.Close()
	}()
	read(t, near, "last words")
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after the end of the other side: %v", err)
	}
	near, _ = wired(t, time.Millisecond)
	if err := near.Close(); err != nil {
		t.Error(err)
	}
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestWireDeadlines checks that a read ends at its deadline, also one that was set while it waits, and that a deadline
// that is taken back does no harm.
func TestWireDeadlines(t *testing.T) {
	near, far := wired(t, time.Millisecond)
	for name, set := range map[string]func() error{
		"before": func() error { return near.SetDeadline(time.Now().Add(-time.Second)) },
		"soon":   func() error { return near.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) },
		"later": func() error {
			time.AfterFunc(10*time.Millisecond, func() { _ = near.SetDeadline(time.Now()) })
			return near.SetDeadline(time.Now().Add(time.Hour))
		},
	} {
		if err := set(); err != nil {
			t.Fatal(err)
		}
		_, err := near.Read(make([]byte, 1))
		var timeout net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("%s: the read ended with %v", name, err)
		}
	}
	if err := near.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	write(t, far, "still here")
	read(t, near, "still here")
}

// TestWirePrecision holds the delay to what the figures say: a timer that is a millisecond late would be twice as long.
func TestWirePrecision(t *testing.T) {
	const delay = 500 * time.Microsecond
	near, far := wired(t, delay)
	go func() {
		_, _ = io.Copy(far, far)
	}()
	// A quick round trip says what the wire adds, the others what else the machine does.
	await.That(t, "a round trip takes little more than the delay", func() bool {
		started := time.Now()
		write(t, near, "x")
		read(t, near, "x")
		took := time.Since(started)
		if took < delay {
			t.Errorf("a round trip took %s, want %s at least", took, delay)
		}
		return took <= 2*delay
	})
}
