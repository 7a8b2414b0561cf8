package oncewardtest

import (
	"fmt"
	"strings"
	"sync"
)

// journal is what has happened, a line for each event.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(who, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf("%-8s  %s", who, fmt.Sprintf(format, args...)))
}

func (j *journal) call(name string, err error) {
	if err != nil {
		j.add("store", "%s: %v", name, err)
		return
	}
	j.add("store", "%s", name)
}

// maxHistory is how many lines of a history are shown: a check that needs more has gone round in circles.
const maxHistory = 40

// text returns the history.
func (j *journal) text() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	for i, line := range j.lines {
		if i == maxHistory {
			_, _ = fmt.Fprintf(&b, "    … and %d lines more\n", len(j.lines)-i)
			break
		}
		_, _ = fmt.Fprintf(&b, "    %2d  %s\n", i+1, line)
	}
	return b.String()
}
