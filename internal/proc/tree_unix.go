//go:build unix

package proc

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// CanPause says that this system has signals that stop a process and let it go on.
const CanPause = true

// Pause stops the process where it is: its connections stay open, and nothing answers.
func (p *Process) Pause() error { return p.Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// RunAs makes a command run as another user. It is to be called before Start.
func RunAs(cmd *exec.Cmd, uid, gid int) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}

// pollEvery is how often the process table is looked at while waiting for a change.
const pollEvery = 3 * time.Millisecond

// PauseTree stops the process and all that it has started. Each parent goes first, and is waited for, so that it has no
// more children than those that are found.
func (p *Process) PauseTree() error {
	if p.Ended() {
		return fmt.Errorf("proc: process %d has ended", p.PID())
	}
	_, err := pauseTree(p.PID())
	return err
}

// pauseTree returns the ids of all processes below the given one.
func pauseTree(pid int) (below []int, err error) {
	if err := ignoreGone(syscall.Kill(pid, syscall.SIGSTOP)); err != nil {
		return nil, err
	}
	if err := awaitStates(isStopped, pid); err != nil {
		return nil, err
	}
	children, err := childrenOf(pid)
	for _, child := range children {
		further, childErr := pauseTree(child)
		below, err = append(append(below, child), further...), errors.Join(err, childErr)
	}
	return below, err
}

// ResumeTree lets the process and all that it has started go on, children first.
func (p *Process) ResumeTree() error {
	if p.Ended() {
		return nil
	}
	below, err := Descendants(p.PID())
	return errors.Join(err, signalAll(syscall.SIGCONT, below), p.Resume())
}

// KillTree ends the process and all that it has started at one point in time, and returns when all of them are gone.
// They are paused first, so that none of them does anything between the death of one and of another. If the process has
// ended by itself, nothing here knows which processes are its orphans, and they are left alone.
func (p *Process) KillTree() error {
	if p.Ended() {
		return nil
	}
	below, err := pauseTree(p.PID())
	err = errors.Join(err, p.Signal(syscall.SIGKILL), signalAll(syscall.SIGKILL, below))
	if slow := p.Wait(killLimit); errors.Is(slow, ErrRunning) {
		err = errors.Join(err, slow)
	}
	return errors.Join(err, AwaitGone(below...))
}

// Descendants returns the ids of all processes that the given one has started, and that those have started.
func Descendants(pid int) ([]int, error) {
	below, err := childrenOf(pid)
	for _, child := range below {
		further, childErr := Descendants(child)
		below, err = append(below, further...), errors.Join(err, childErr)
	}
	return below, err
}

// AwaitGone waits until none of the processes is left.
func AwaitGone(pids ...int) error { return awaitStates(isGone, pids...) }

func signalAll(signal syscall.Signal, pids []int) error {
	var errs []error
	for _, pid := range pids {
		errs = append(errs, ignoreGone(syscall.Kill(pid, signal)))
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

// awaitStates waits until each of the processes is in a state that suits. A process that is not listed has state zero.
func awaitStates(suits func(state byte) bool, pids ...int) error {
	for deadline := time.Now().Add(killLimit); ; time.Sleep(pollEvery) {
		table, err := processTable()
		if err != nil {
			return err
		}
		states := make(map[int]byte, len(table))
		for _, each := range table {
			states[each.pid] = each.state
		}
		waiting := 0
		for _, pid := range pids {
			if !suits(states[pid]) {
				waiting = pid
			}
		}
		if waiting == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("proc: process %d does not obey a signal after %v", waiting, killLimit)
		}
	}
}
