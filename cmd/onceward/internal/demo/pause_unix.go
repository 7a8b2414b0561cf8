//go:build unix

package demo

import "syscall"

const canPause = true

// pause stops the process where it is.
func (p *process) pause() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// resume lets it go on.
func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
