package proc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// setAttributes puts a command into a process group of its own, and lets it end with the thread that starts it.
//
// The group also wakes a paused process when this one dies, because the system lets no process sleep in a group without
// a parent: otherwise it could not follow a signal that is not SIGKILL.
func setAttributes(cmd *exec.Cmd, orphaned syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, orphaned
}

// processTable lists the processes of the system.
func processTable() ([]entry, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	table := make([]entry, 0, len(files))
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended since
		}
		one, err := parseStat(string(line))
		if err != nil {
			return nil, err
		}
		table = append(table, one)
	}
	return table, nil
}

// parseStat reads a line like "42 (postgres: a (b) c) S 1 ...". The name may hold anything, so what follows it is found
// from the right.
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
