//go:build !unix

package demo

import (
	"errors"
	"syscall"
)

// canPause says that this system has no signal to stop a process.
const canPause = false

func attributes() *syscall.SysProcAttr { return nil }

func (p *process) pause() error { return errors.ErrUnsupported }

func (p *process) resume() error { return errors.ErrUnsupported }
