package oncewardtest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// journal is the history of a test, with a line for each event.
type journal struct {
	mu    sync.Mutex
	lines []string
	keys  []string // in the order of their appearance
}

// keyName returns a short name for a key: keys are long and random, and only their equality matters.
func (j *journal) keyName(key string) string {
	if key == "" {
		return "no key"
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	i := slices.Index(j.keys, key)
	if i < 0 {
		i = len(j.keys)
		j.keys = append(j.keys, key)
	}
	const letters = 26
	if i < letters {
		return "key " + string(rune('A'+i))
	}
	return fmt.Sprintf("key %d", i+1)
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

// maxHistory is the largest number of lines that are shown of a history: a longer history repeats itself.
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
