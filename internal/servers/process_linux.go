package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// attributes make a command run as its owner, in a process group of its own, and die with the thread that starts it.
//
// The group keeps an interrupt that is typed on the terminal away from the server, which the tests may still need to end in
// order. It also wakes a frozen server when this process dies, because the system lets nobody sleep in a group without a
// parent: otherwise it could not follow the signal.
func attributes(as owner, death syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
	if as.other {
		attr.Credential = &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.gid)}
	}
	return attr
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

// parseStat reads a line like "42 (postgres: a (b) c) S 1 ...". The name may hold anything, so what follows it is found from
// the right.
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
