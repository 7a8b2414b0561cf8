// Package proc starts, pauses and kills processes, waits for them, and exchanges lines with
// them. All programs and tests of this repository that need another process use it: the
// demo, the crash tests, chaos, the benchmarks and the servers for tests. It identifies a
// process by its handle, never by its name, so that it cannot affect an unrelated process.
//
// It is in internal/ and not in lab because the demo uses it, which is part of the
// product, and because tests of all modules use it. It imports only the standard library,
// without testing: package proctest has processes that live as long as their test.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// killLimit is the time that the system may need to carry out a signal that cannot be refused.
	killLimit = 2 * time.Minute
	// pipeLimit is how long the children of a process may keep its output open after its end.
	pipeLimit = 5 * time.Second
	// mostOutput is the number of bytes of the standard error that are kept.
	mostOutput = 64 << 10
)

// ErrRunning is returned when a process is still running at the end of a time limit.
var ErrRunning = errors.New("proc: the process still runs")

// Process is a process that was started here. Its methods are
// safe for concurrent use, but only one goroutine may read lines.
type Process struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	lines *lines
	said  tail
	// done is closed when the process has ended. exit is then its result.
	done chan struct{}
	exit error
}

// Start starts a command in its own process group, so that interrupts typed on the terminal do not reach it.
// Streams that the command leaves unset are connected to the process: its input (see Say), its output (see Line)
// and its standard error (see Stderr). On Linux, the process is killed when this process ends, in whatever way.
func Start(cmd *exec.Cmd) (*Process, error) { return StartUntil(cmd, syscall.SIGKILL) }

// StartUntil is like Start, but orphaned is sent to the process when this
// process ends, for example a signal that lets it clean up. Only Linux sends it.
func StartUntil(cmd *exec.Cmd, orphaned syscall.Signal) (*Process, error) {
	p := &Process{cmd: cmd, lines: newLines(), done: make(chan struct{})}
	if cmd.Stdin == nil {
		input, err := cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		p.input = input
	}
	if cmd.Stdout == nil {
		cmd.Stdout = p.lines
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &p.said
	}
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = pipeLimit
	}
	setAttributes(cmd, orphaned)
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the command and waits for its end. Linux signals orphans when the thread that started
// them ends, and not only when its process ends. The thread is therefore kept while the command runs.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	p.exit = p.cmd.Wait()
	p.lines.end()
	close(p.done)
}

// Self returns the command that runs this program again in another
// role: its main function, or its TestMain, checks the variable.
func Self(variable, value string, args ...string) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), variable+"="+value)
	return cmd
}

// PID returns the ID of the process. Another process may have this ID after this one has ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Line waits for the next line of the standard output. After the last line
// it returns an error with the result of the process, which wraps io.EOF.
func (p *Process) Line(limit time.Duration) (string, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		line, state := p.lines.next()
		switch state {
		case lineRead:
			return line, nil
		case linesEnded:
			<-p.done
			return "", fmt.Errorf("proc: it has ended: %w: %v: %s", io.EOF, p.exit, strings.TrimSpace(p.Stderr()))
		}
		select {
		case <-p.lines.more:
		case <-timer.C:
			return "", fmt.Errorf("%w and has said nothing for %v: %s", ErrRunning, limit, strings.TrimSpace(p.Stderr()))
		}
	}
}

// Expect waits for the next line, and returns it if it begins with the prefix.
func (p *Process) Expect(prefix string, limit time.Duration) (string, error) {
	line, err := p.Line(limit)
	if err == nil && !strings.HasPrefix(line, prefix) {
		err = fmt.Errorf("proc: the process said %q, want %q: %s", line, prefix, strings.TrimSpace(p.Stderr()))
	}
	return line, err
}

// Say writes a line to the standard input.
func (p *Process) Say(line string) error {
	_, err := io.WriteString(p.input, line+"\n")
	return err
}

// Stderr returns the end of the standard error of the process.
func (p *Process) Stderr() string { return p.said.String() }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Wait waits for the end of the process and returns its result, as [exec.Cmd.Wait] does, or [ErrRunning].
func (p *Process) Wait(limit time.Duration) error {
	if p.Ended() {
		return p.exit
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.exit
	case <-timer.C:
		return fmt.Errorf("%w after %v (%d)", ErrRunning, limit, p.PID())
	}
}

// ExitCode returns the exit status of a process that has ended; -1 if a signal ended it or if it is running.
func (p *Process) ExitCode() int {
	if !p.Ended() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal to the process. It does nothing if the process has ended.
func (p *Process) Signal(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Kill kills the process, paused or not, and returns when it is gone. Its result is not an error.
func (p *Process) Kill() error {
	if err := p.Signal(os.Kill); err != nil {
		return err
	}
	if err := p.Wait(killLimit); errors.Is(err, ErrRunning) {
		return err
	}
	return nil
}

// End closes the standard input of the process, as a request to end, and
// returns the result. A process that has not ended in time is killed.
func (p *Process) End(limit time.Duration) error {
	_ = p.input.Close() // the process may have closed its side
	err := p.Wait(limit)
	if errors.Is(err, ErrRunning) {
		return errors.Join(err, p.Kill())
	}
	return err
}

// lines is a queue of the lines that a process writes. It has no limit: a process
// that had to wait for its reader would behave differently than in production.
type lines struct {
	mu    sync.Mutex
	whole []string
	part  []byte
	ended bool
	// more contains a token after each change.
	more chan struct{}
}

// These are the results of lines.next.
const (
	lineRead = iota
	noLineYet
	linesEnded
)

func newLines() *lines { return &lines{more: make(chan struct{}, 1)} }

// Write adds output of the process.
func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	l.part = append(l.part, text...)
	for {
		line, rest, found := bytes.Cut(l.part, []byte("\n"))
		if !found {
			break
		}
		l.whole, l.part = append(l.whole, strings.TrimSuffix(string(line), "\r")), rest
	}
	l.mu.Unlock()
	l.tell()
	return len(text), nil
}

// end is called at the end of the output. A last line without a line end is a line too.
func (l *lines) end() {
	l.mu.Lock()
	if len(l.part) > 0 {
		l.whole = append(l.whole, string(l.part))
	}
	l.ended = true
	l.mu.Unlock()
	l.tell()
}

func (l *lines) tell() {
	select {
	case l.more <- struct{}{}:
	default: // the reader has not taken the previous token
	}
}

func (l *lines) next() (line string, state int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(l.whole) > 0:
		line, l.whole = l.whole[0], l.whole[1:]
		return line, lineRead
	case l.ended:
		return "", linesEnded
	default:
		return "", noLineYet
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	if excess := len(t.text) - mostOutput; excess > 0 {
		t.text = append(t.text[:0], t.text[excess:]...)
	}
	return len(text), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
