package demo

import "syscall"

// attributes make a child die with this process, also if this one is killed. In a group of its own it does not get the
// interrupt that is typed on the terminal: this process ends it in order.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
