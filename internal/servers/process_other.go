//go:build !linux

package servers

import (
	"bufio"
	"bytes"
	"fmt"
	"os/exec"
	"syscall"
)

// attributes make a command run as its owner, in a process group of its own. Only Linux can tie its life to ours: elsewhere
// a server outlives a process that is killed.
func attributes(as owner, _ syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if as.other {
		attr.Credential = &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.gid)}
	}
	return attr
}

// processTable lists the processes of the system.
func processTable() ([]entry, error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,state=").Output()
	if err != nil {
		return nil, fmt.Errorf("process list: %w", err)
	}
	var table []entry
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var e entry
		var state string
		if _, err := fmt.Sscan(lines.Text(), &e.pid, &e.parent, &state); err != nil {
			return nil, fmt.Errorf("process list: %q: %w", lines.Text(), err)
		}
		e.state = state[0]
		table = append(table, e)
	}
	return table, nil
}
