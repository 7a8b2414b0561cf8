package servers

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

const (
	// pollEvery is how often the state of a process or of a server is looked at while waiting for it.
	pollEvery = 3 * time.Millisecond
	// signalLimit is how long the system may take to carry out a signal that cannot be refused.
	signalLimit = 20 * time.Second
)

// process is a server that this process has started, with the processes that it has started in turn.
type process struct {
	pid int
	// done is closed when the process itself has ended.
	done chan struct{}
}

// startProcess starts a command that ends with this process: if it is killed, the system sends death to the command.
func startProcess(cmd *exec.Cmd, as owner, death syscall.Signal) (*process, error) {
	cmd.SysProcAttr = attributes(as, death)
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the command and waits for its end. Linux sends the signal when the thread ends that has started the command,
// not when its process does. So the thread is kept for as long as the command runs.
func (p *process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	if err == nil {
		p.pid = cmd.Process.Pid
	}
	started <- err
	if err == nil {
		_ = cmd.Wait() // how it ended is in its log
		close(p.done)
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal sends a signal to the process alone.
func (p *process) signal(sig syscall.Signal) error {
	if p.ended() {
		return nil // its id may belong to another by now
	}
	return ignoreGone(syscall.Kill(p.pid, sig))
}

// waitEnd waits until the process has ended.
func (p *process) waitEnd(limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("process %d still runs after %v", p.pid, limit)
	}
}

// freeze stops the process and its children where they are, and returns the ids of the children. The parent goes first,
// and is waited for, so that it has no more children than those that are found.
func (p *process) freeze() (children []int, err error) {
	if p.ended() {
		return nil, fmt.Errorf("process %d has ended", p.pid)
	}
	if err := ignoreGone(syscall.Kill(p.pid, syscall.SIGSTOP)); err != nil {
		return nil, err
	}
	if err := waitStates(isStopped, p.pid); err != nil {
		return nil, err
	}
	if children, err = childrenOf(p.pid); err != nil {
		return nil, err
	}
	if err := signalAll(syscall.SIGSTOP, children); err != nil {
		return nil, err
	}
	return children, waitStates(isStopped, children...)
}

// thaw lets the process and its children go on.
func (p *process) thaw() error {
	if p.ended() {
		return nil
	}
	children, err := childrenOf(p.pid)
	if err != nil {
		return err
	}
	return errors.Join(signalAll(syscall.SIGCONT, children), p.signal(syscall.SIGCONT))
}

// kill ends the process and its children at one point in time, and returns when all of them are gone. They are frozen first,
// so that none of them does anything between the death of one and of another.
func (p *process) kill() error {
	if p.ended() {
		return nil
	}
	children, err := p.freeze()
	err = errors.Join(err, p.signal(syscall.SIGKILL), signalAll(syscall.SIGKILL, children))
	return errors.Join(err, p.waitEnd(signalLimit), waitStates(isGone, children...))
}

func signalAll(sig syscall.Signal, pids []int) error {
	var errs []error
	for _, pid := range pids {
		errs = append(errs, ignoreGone(syscall.Kill(pid, sig)))
	}
	return errors.Join(errs...)
}

// ignoreGone hides that a process has ended before the signal came.
func ignoreGone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// entry is one process as the system lists it.
type entry struct {
	pid, parent int
	// state is a letter: T is stopped, Z has ended and is still listed.
	state byte
}

func isGone(state byte) bool { return state == 0 || state == 'Z' || state == 'X' }

func isStopped(state byte) bool { return state == 'T' || isGone(state) }

func childrenOf(pid int) ([]int, error) {
	table, err := processTable()
	if err != nil {
		return nil, err
	}
	var children []int
	for _, each := range table {
		if each.parent == pid && !isGone(each.state) {
			children = append(children, each.pid)
		}
	}
	return children, nil
}

// waitStates waits until each of the processes is in a state that suits. A process that is not listed has state zero.
func waitStates(suits func(state byte) bool, pids ...int) error {
	deadline := time.Now().Add(signalLimit)
	for {
		table, err := processTable()
		if err != nil {
			return err
		}
		waiting := 0
		for _, pid := range pids {
			if !suits(stateOf(table, pid)) {
				waiting = pid
			}
		}
		if waiting == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not obey a signal after %v", waiting, signalLimit)
		}
		time.Sleep(pollEvery)
	}
}

func stateOf(table []entry, pid int) byte {
	for _, each := range table {
		if each.pid == pid {
			return each.state
		}
	}
	return 0
}
