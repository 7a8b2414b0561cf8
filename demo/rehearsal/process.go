package rehearsal

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/proc"
)

// Child serves as one of several processes. It reads its configuration as one line
// from in, writes its URL as one line to out, and ends when in ends, so that it
// never outlives its parent on any system. The contexts are like those of [Run].
func Child(ctx, hurry context.Context, program Program, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	first, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("this command is for the demo's own use: %w", err)
	}
	var config nodeConfig
	if err := json.Unmarshal(first, &config); err != nil {
		return err
	}
	n, err := startNode(ctx, program, config)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, n.address()); err != nil {
		return errors.Join(err, n.close(hurry))
	}
	orphaned := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, lines) // only the end matters
		close(orphaned)
	}()
	select {
	case <-orphaned:
	case <-ctx.Done():
	case err = <-n.failed():
	}
	return errors.Join(err, n.close(hurry))
}

// startWithin is the time in which a child must begin to serve. Its store may be slow to open.
const startWithin = time.Minute

// process is a node in a child process.
type process struct {
	*proc.Process
	url    string
	broken chan error
	// expected is set before the process is ended on purpose.
	expected atomic.Bool
}

// startProcess runs this program again as a child, and returns when the child serves.
func startProcess(program Program, config nodeConfig) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	child, err := proc.Start(exec.Command(self, program.Child))
	if err != nil {
		return nil, err
	}
	p := &process{Process: child, broken: make(chan error, 1)}
	if err := p.introduce(config); err != nil {
		return nil, errors.Join(fmt.Errorf("a server process did not start: %w", err), p.kill())
	}
	go p.watch()
	return p, nil
}

// introduce sends the child its configuration, and reads its URL.
func (p *process) introduce(config nodeConfig) error {
	encoded, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := p.Say(string(encoded)); err != nil {
		return err
	}
	p.url, err = p.Expect("http://", startWithin)
	return err
}

// watch reports a process that ends unexpectedly.
func (p *process) watch() {
	<-p.Done()
	if !p.expected.Load() {
		p.broken <- fmt.Errorf("a server process has ended by itself: %v: %s", p.Wait(0), strings.TrimSpace(p.Stderr()))
	}
}

func (p *process) address() string { return p.url }

func (p *process) failed() <-chan error { return p.broken }

// kill kills the process, which stops like in a power cut.
func (p *process) kill() error {
	p.expected.Store(true)
	return p.Kill()
}

// close closes the standard input of the process, which then ends. When the context ends, the process is killed.
func (p *process) close(ctx context.Context) error {
	p.expected.Store(true)
	ended := make(chan error, 1)
	go func() { ended <- p.End(2 * endWithin) }()
	select {
	case err := <-ended:
		if errors.Is(err, proc.ErrRunning) {
			return errors.New("a server process had to be killed at the end")
		}
		return err
	case <-ctx.Done():
		return p.kill()
	}
}
