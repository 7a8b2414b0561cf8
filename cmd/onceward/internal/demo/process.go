package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
)

// ChildCommand is the command, not listed in the help, by which this program runs as one of several processes.
const ChildCommand = "demo-child"

// process is a node in a process of its own.
type process struct {
	url   string
	cmd   *exec.Cmd
	stdin io.Closer
	said  bytes.Buffer // on the standard error; to be read when it has ended
	// ended is closed when the process has ended, with how in exit.
	ended  chan struct{}
	exit   error
	broken chan error
	// expected is set before the process is made to end.
	expected atomic.Bool
}

// startProcess runs this program again as a child, and returns when it serves.
func startProcess(config nodeConfig) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{
		cmd: exec.Command(program, ChildCommand), ended: make(chan struct{}), broken: make(chan error, 1),
	}
	p.cmd.SysProcAttr = attributes()
	p.cmd.Stderr = &p.said
	p.cmd.WaitDelay = endWithin
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, saidTo, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	p.cmd.Stdout = saidTo
	started := make(chan error)
	go p.run(started)
	err = <-started
	_ = saidTo.Close() // the child has its own end by now
	if err != nil {
		return nil, err
	}
	if err := p.introduce(config, stdin, stdout); err != nil {
		return nil, errors.Join(err, p.kill())
	}
	return p, nil
}

// introduce tells the child what to do, and learns where it serves.
func (p *process) introduce(config nodeConfig, stdin io.Writer, stdout io.Reader) error {
	if err := json.NewEncoder(stdin).Encode(config); err != nil {
		return err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		<-p.ended
		return fmt.Errorf("a server process did not start: %w: %s", p.exit, strings.TrimSpace(p.said.String()))
	}
	p.url = strings.TrimSpace(line)
	return nil
}

// run starts the child and waits for its end. Linux kills the child when the thread ends that has started it, not when the
// process does. So the thread is kept for as long as the child runs.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.exit = p.cmd.Wait()
	close(p.ended)
	if !p.expected.Load() {
		p.broken <- fmt.Errorf("a server process has ended by itself: %v: %s", p.exit, strings.TrimSpace(p.said.String()))
	}
}

func (p *process) address() string { return p.url }

func (p *process) failed() <-chan error { return p.broken }

// kill ends the process as a power cut would.
func (p *process) kill() error {
	p.expected.Store(true)
	err := p.cmd.Process.Kill()
	<-p.ended
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// close asks the process to end, by closing its standard input. When the context ends, it is killed.
func (p *process) close(ctx context.Context) error {
	p.expected.Store(true)
	_ = p.stdin.Close() // it may have ended before
	select {
	case <-p.ended:
		return p.exit
	case <-ctx.Done():
		return p.kill()
	case <-time.After(2 * endWithin):
		_ = p.cmd.Process.Kill() // it may have ended just now
		<-p.ended
		return errors.New("a server process had to be killed at the end")
	}
}
