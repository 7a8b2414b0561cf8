package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc/proctest"
)

// running is a demo in full swing.
type running struct {
	*proctest.Process
	temporary string
	// addresses are those of its processes.
	addresses []string
}

// startLoad starts a demo with processes, and returns when the clients are at it.
func startLoad(t *testing.T, processes string) *running {
	t.Helper()
	command, temporary := demoProcess(t, "--processes", processes)
	r := &running{Process: proctest.Start(t, command), temporary: temporary}
	for {
		line := r.Hear("")
		if urls, found := strings.CutPrefix(line, "Served at "); found {
			r.addresses = strings.Fields(strings.ReplaceAll(urls, "http://", ""))
		}
		if strings.Contains(line, "answered") {
			if fmt.Sprint(len(r.addresses)) != processes {
				t.Fatalf("the demo named the processes %q, want %s", r.addresses, processes)
			}
			return r
		}
	}
}

// end sends a signal, and waits until nothing of the demo runs any more.
func (r *running) end(t *testing.T, sig os.Signal) (status int) {
	t.Helper()
	if err := r.Signal(sig); err != nil {
		t.Fatal(err)
	}
	r.Rest() // what it says meanwhile is not looked at
	for _, address := range r.addresses {
		await.That(t, "a process of the demo has ended", func() bool { return !reachable(address) })
	}
	return r.ExitCode()
}

// holdUp sends a request that does not come to its end, which an orderly end waits for.
func holdUp(t *testing.T, address string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the other end may be gone
	_, err = fmt.Fprint(conn, "POST /payments HTTP/1.1\r\nHost: demo\r\nAuthorization: Bearer alice\r\nIdempotency-Key: slow\r\n"+
		"Content-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
		t.Fatalf("the demo does not wait for the body: %q, %v", line, err)
	}
}

// TestInterruptTwice: a second interrupt leaves nothing behind either.
func TestInterruptTwice(t *testing.T) {
	t.Parallel()
	for _, processes := range []string{"1", "2"} {
		t.Run(processes, func(t *testing.T) {
			t.Parallel()
			r := startLoad(t, processes)
			holdUp(t, r.addresses[0])
			if err := r.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			await.That(t, "the demo has ended in order", func() bool { return !reachable(r.addresses[0]) })
			if status := r.end(t, os.Interrupt); status != 1 || !strings.Contains(r.Stderr(), "interrupted, no verdict") {
				t.Errorf("exit status %d: %s", status, r.Stderr())
			}
			wantEmpty(t, r.temporary)
		})
	}
}

func TestInterruptLoad(t *testing.T) {
	t.Parallel()
	r := startLoad(t, "2")
	if status := r.end(t, os.Interrupt); status != 1 || !strings.Contains(r.Stderr(), "interrupted, no verdict") {
		t.Errorf("exit status %d: %s", status, r.Stderr())
	}
	wantEmpty(t, r.temporary)
}

// TestChildrenEndWithTheirParent: also if it has no time to say goodbye.
func TestChildrenEndWithTheirParent(t *testing.T) {
	t.Parallel()
	startLoad(t, "2").end(t, os.Kill)
}
