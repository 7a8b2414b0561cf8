package proc

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// setAttributes puts a command into its own process group, and lets it end with the thread that starts it.
//
// The group also wakes a paused process when this process dies, because Linux lets no process stay stopped
// in a group without a parent: otherwise a paused process could not handle a signal other than SIGKILL.
func setAttributes(cmd *exec.Cmd, orphaned syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, orphaned
}

// processTable lists the processes of the system.
func processTable() ([]entry, error) {
	system, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("process list: %w", err)
	}
	defer system.Close()
	names, err := system.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("process list: %w", err)
	}
	table := make([]entry, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue // a file of the system itself
		}
		if table, err = appendProcess(table, pid); err != nil {
			return nil, err
		}
	}
	return table, nil
}

// statesOf returns the states of the listed processes. It does not read the others.
func statesOf(pids []int) (map[int]byte, error) {
	var table []entry
	for _, pid := range pids {
		var err error
		if table, err = appendProcess(table, pid); err != nil {
			return nil, err
		}
	}
	states := make(map[int]byte, len(table))
	for _, each := range table {
		states[each.pid] = each.state
	}
	return states, nil
}

// appendProcess appends one process, unless it has ended.
func appendProcess(table []entry, pid int) ([]entry, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return table, nil
	}
	one, err := parseStat(string(line))
	return append(table, one), err
}

// parseStat parses a line like "42 (postgres: a (b) c) S 1 ...". The name may
// contain any text, so that the fields after it are found from the right.
func parseStat(line string) (entry, error) {
	var e entry
	pid, _, _ := strings.Cut(line, " ")
	rest := line[strings.LastIndexByte(line, ')')+1:]
	if _, err := fmt.Sscan(pid, &e.pid); err != nil {
		return e, fmt.Errorf("process list: %q: %w", line, err)
	}
	var state string
	if _, err := fmt.Sscan(rest, &state, &e.parent); err != nil {
		return e, fmt.Errorf("process list: %q: %w", line, err)
	}
	e.state = state[0]
	return e, nil
}
