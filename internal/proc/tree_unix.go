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

// CanPause reports whether this system has signals that stop and continue a process.
const CanPause = true

// Pause stops the process: its connections stay open, and nothing answers.
func (p *Process) Pause() error { return p.Signal(syscall.SIGSTOP) }

// Resume continues a paused process.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// RunAs makes a command run as another user. It must be called before Start.
func RunAs(cmd *exec.Cmd, uid, gid int) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}

// pollEvery is the pause between two reads of the process table while waiting for a change.
const pollEvery = 3 * time.Millisecond

// PauseTree stops the process and all of its descendants. It stops each parent
// first and waits for it, so that the parent starts no further children.
func (p *Process) PauseTree() error {
	if p.Ended() {
		return fmt.Errorf("proc: process %d has ended", p.PID())
	}
	_, err := pauseTree(p.PID())
	return err
}

// PauseTrees stops processes and their descendants like PauseTree. It is for indirectly started processes
// that have left the tree of the process that was started here, such as the servers of a supervisor.
func PauseTrees(pids ...int) error {
	_, err := pauseTree(pids...)
	return err
}

// ResumeTrees continues processes and their descendants, children first.
func ResumeTrees(pids ...int) error {
	below, err := Descendants(pids...)
	return errors.Join(err, signalAll(syscall.SIGCONT, below), signalAll(syscall.SIGCONT, pids))
}

// KillTrees kills processes and their descendants at one point in time, and returns when all of them are gone.
func KillTrees(pids ...int) error {
	below, err := pauseTree(pids...)
	all := append(slices.Clone(pids), below...)
	return errors.Join(err, signalAll(syscall.SIGKILL, all), AwaitGone(all...))
}

// pauseTree stops the processes, and returns the IDs of all their descendants. It
// works generation by generation, and reads the process table once for each: a
// server has a process for each connection, and each read covers the whole system.
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

// ResumeTree continues the process and all of its descendants, children first.
func (p *Process) ResumeTree() error {
	if p.Ended() {
		return nil
	}
	below, err := Descendants(p.PID())
	return errors.Join(err, signalAll(syscall.SIGCONT, below), p.Resume())
}

// KillTree kills the process and all of its descendants at one point in time, and returns when
// all of them are gone. They are paused first, so that none of them reacts to the death of
// another. If the process has ended already, its orphans are not known, and are left alone.
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

// Descendants returns the IDs of all direct and indirect children of the processes.
func Descendants(pids ...int) (below []int, err error) {
	for parents := pids; len(parents) > 0 && err == nil; below = append(below, parents...) {
		parents, err = childrenOf(parents...)
	}
	return below, err
}

// AwaitGone waits until all of the processes have ended.
func AwaitGone(pids ...int) error { return awaitStates(isGone, pids...) }

func signalAll(signal syscall.Signal, pids []int) error {
	var errs []error
	for _, pid := range pids {
		errs = append(errs, ignoreGone(syscall.Kill(pid, signal)))
	}
	return errors.Join(errs...)
}

// ignoreGone ignores the error for a process that ended before the signal was sent.
func ignoreGone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// entry is one process in the system's list.
type entry struct {
	pid, parent int
	// state is a letter: T means stopped, Z means ended but still listed.
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

// awaitStates waits until each of the processes is in a suitable state. A process that is not listed has state zero.
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
