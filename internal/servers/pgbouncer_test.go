package servers

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"
)

// TestPgBouncerComesBack: one that ends by itself is there again, and one that was killed here is not.
func TestPgBouncerComesBack(t *testing.T) {
	t.Parallel()
	s := NewPgBouncer(t, Postgres(t).URL())
	accepts := func() error {
		conn, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", s.port))
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	died := s.PID()
	must(t, syscall.Kill(died, syscall.SIGKILL))
	for deadline := time.Now().Add(startLimit); s.PID() == died || accepts() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come back")
		}
	}
	must(t, s.Kill())
	if accepts() == nil {
		t.Error("one that was killed here came back")
	}
}
