//go:build unix

package proc

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
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

// PauseTrees stops processes and all that they have started, like PauseTree. It is for those that a process which was
// started here has started, and that have left its tree: a supervisor's servers.
func PauseTrees(pids ...int) error {
	_, err := pauseTree(pids...)
	return err
}

// ResumeTrees lets processes and all that they have started go on, children first.
func ResumeTrees(pids ...int) error {
	below, err := Descendants(pids...)
	return errors.Join(err, signalAll(syscall.SIGCONT, below), signalAll(syscall.SIGCONT, pids))
}

// KillTrees ends processes and all that they have started at one point in time, and returns when all of them are gone.
func KillTrees(pids ...int) error {
	below, err := pauseTree(pids...)
	all := append(slices.Clone(pids), below...)
	return errors.Join(err, signalAll(syscall.SIGKILL, all), AwaitGone(all...))
}

// pauseTree returns the ids of all processes below the given ones. It goes down by generations, with one look at the
// process table for each: a server has a process for each connection, and a look goes through all of the system.
func pauseTree(pids ...int) (below []int, err error) {
	for parents := pids; len(parents) > 0; {
		if err := errors.Join(signalAll(syscall.SIGSTOP, parents), awaitStates(isStopped, parents...)); err != nil {
			return below, err
		}
		if parents, err = childrenOf(parents...); err != nil {
			return below, err
		}
		below = append(below, parents...)
	}
	return below, nil
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

// Descendants returns the ids of all processes that the given ones have started, and that those have started.
func Descendants(pids ...int) (below []int, err error) {
	for parents := pids; len(parents) > 0 && err == nil; below = append(below, parents...) {
		parents, err = childrenOf(parents...)
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

func childrenOf(parents ...int) ([]int, error) {
	table, err := processTable()
	if err != nil {
		return nil, err
	}
	var children []int
	for _, each := range table {
		if slices.Contains(parents, each.parent) && !isGone(each.state) {
			children = append(children, each.pid)
		}
	}
	return children, nil
}

// awaitStates waits until each of the processes is in a state that suits. A process that is not listed has state zero.
func awaitStates(suits func(state byte) bool, pids ...int) error {
	waiting := slices.Clone(pids)
	for deadline := time.Now().Add(killLimit); ; time.Sleep(pollEvery) {
		states, err := statesOf(waiting)
		if err != nil {
			return err
		}
		waiting = slices.DeleteFunc(waiting, func(pid int) bool { return suits(states[pid]) })
		if len(waiting) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("proc: process %d does not obey a signal after %v", waiting[0], killLimit)
		}
	}
}
