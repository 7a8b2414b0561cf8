//go:build !unix

package proc

import (
	"errors"
	"os/exec"
	"syscall"
)

// CanPause says that this system has no signals that stop a process and let it go on.
const CanPause = false

// Pause fails on this system.
func (p *Process) Pause() error { return errors.ErrUnsupported }

// Resume fails on this system.
func (p *Process) Resume() error { return errors.ErrUnsupported }

func setAttributes(*exec.Cmd, syscall.Signal) {}
