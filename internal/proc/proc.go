// Package proc starts processes, talks to them, waits for them, pauses them and kills them. It is the one harness for
// all programs and tests of this repository that need another process: the demo, the crash tests, chaos, the benchmarks
// and the servers that tests run against. It knows a process by its handle, never by its name, so that it cannot hit
// another.
//
// It is in internal/ and not in lab because the demo, which is product, uses it, and because tests of all modules do.
// It imports the standard library alone, without testing: see proctest for a process that lives as long as its test.
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
	// killLimit is how long the system may take to carry out a signal that cannot be refused.
	killLimit = 2 * time.Minute
	// pipeLimit is how long after a process its children may keep its output open.
	pipeLimit = 5 * time.Second
	// mostOutput is how much of the standard error is kept.
	mostOutput = 64 << 10
)

// ErrRunning is returned when a process is still running at the end of the time that was given to it.
var ErrRunning = errors.New("proc: the process still runs")

// Process is a process that was started here. All of its methods can be called at the same time, but lines are read by
// one goroutine.
type Process struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	lines *lines
	said  tail
	// done is closed when the process has ended, and exit says how.
	done chan struct{}
	exit error
}

// Start starts a command in a process group of its own, which keeps an interrupt away that is typed on the terminal.
// What the command leaves open is connected with the process: its input (see Say), its output (see Line) and its
// standard error (see Stderr). On Linux, the process is killed when this one ends, however that ends.
func Start(cmd *exec.Cmd) (*Process, error) { return StartUntil(cmd, syscall.SIGKILL) }

// StartUntil is Start with another signal for a process that this one leaves behind, such as one that lets it tidy up.
// Only Linux sends it.
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

// run starts the command and waits for its end. Linux sends the signal to orphans when the thread ends that has started
// them, not when its process does. So the thread is kept for as long as the command runs.
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

// Self is the command that runs this program again, in another part: its main function, or its TestMain, sees the
// variable.
func Self(variable, value string, args ...string) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), variable+"="+value)
	return cmd
}

// PID is the id of the process, which another may have once this one has ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Line waits for the next line of the standard output. After the last one it returns an error that says how the process
// ended, and io.EOF is in it.
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

// Stderr is the end of what the process has written to its standard error.
func (p *Process) Stderr() string { return p.said.String() }

// Done is closed when the process has ended.
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

// Wait waits for the end of the process and returns how it ended, as [exec.Cmd.Wait] does, or [ErrRunning].
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

// ExitCode is the exit status of a process that has ended; -1 if a signal ended it or if it runs.
func (p *Process) ExitCode() int {
	if !p.Ended() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal to the process. It does nothing if that has ended.
func (p *Process) Signal(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Kill ends the process as a power cut would, paused or not, and returns when it is gone. How it ended is no error.
func (p *Process) Kill() error {
	if err := p.Signal(os.Kill); err != nil {
		return err
	}
	if err := p.Wait(killLimit); errors.Is(err, ErrRunning) {
		return err
	}
	return nil
}

// End asks the process to end by closing its standard input, and returns how it ended. One that has not ended in time
// is killed.
func (p *Process) End(limit time.Duration) error {
	_ = p.input.Close() // the process may have closed its side
	err := p.Wait(limit)
	if errors.Is(err, ErrRunning) {
		return errors.Join(err, p.Kill())
	}
	return err
}

// lines is a queue of the lines that a process writes. It has no limit: a process that had to wait for its reader would
// not do what it does in production.
type lines struct {
	mu    sync.Mutex
	whole []string
	part  []byte
	ended bool
	// more holds a token after each change.
	more chan struct{}
}

// The answers of lines.next.
const (
	lineRead = iota
	noLineYet
	linesEnded
)

func newLines() *lines { return &lines{more: make(chan struct{}, 1)} }

// Write takes what the process has written.
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

// end is called when there will be no more. A last line without an end is one too.
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
	default: // the reader has not taken the last token
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
