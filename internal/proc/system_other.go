//go:build !unix

package proc

import (
	"errors"
	"os/exec"
	"syscall"
)

// CanPause reports whether this system has signals that stop and continue a process. This system does not.
const CanPause = false

// Pause fails on this system.
func (p *Process) Pause() error { return errors.ErrUnsupported }

// Resume fails on this system.
func (p *Process) Resume() error { return errors.ErrUnsupported }

func setAttributes(*exec.Cmd, syscall.Signal) {}
