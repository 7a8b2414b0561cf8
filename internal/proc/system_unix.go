//go:build unix && !linux

package proc

import (
	"bufio"
	"bytes"
	"fmt"
	"os/exec"
	"syscall"
)

// setAttributes puts a command into its own process group. Only Linux can tie its life to this
// process: on other systems, it must detect by the end of its input that this process was killed.
func setAttributes(cmd *exec.Cmd, _ syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid = true
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

// statesOf returns the states of the processes that are listed.
func statesOf([]int) (map[int]byte, error) {
	table, err := processTable()
	states := make(map[int]byte, len(table))
	for _, each := range table {
		states[each.pid] = each.state
	}
	return states, err
}
