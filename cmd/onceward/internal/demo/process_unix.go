//go:build unix && !linux

package demo

import "syscall"

// attributes keep the interrupt that is typed on the terminal from a child: this process ends it in order. If this one is
// killed, the child external events by its standard input.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
