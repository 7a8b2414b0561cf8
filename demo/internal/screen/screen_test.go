package screen

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"
)

func numbers(done int) Numbers {
	return Numbers{
		Doing: "settling", Done: done, Total: 10, Elapsed: 3 * time.Second,
		Rows: []Row{{"requests", 12, "sent"}, {"replays", 3, "answered again"}},
	}
}

func wide() int { return 80 }

func TestTerminalIsRedrawnInPlace(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &Screen{out: &out, terminal: true, width: wide}
	s.Show(numbers(0))
	want := "[..............................]  0 of 10 answered  3s  settling"
	if first := out.String(); strings.Contains(first, "\x1b[4A") || !strings.Contains(first, want) {
		t.Errorf("at first: %q", first)
	}
	out.Reset()
	s.End(numbers(5))
	second := out.String()
	if !strings.HasPrefix(second, "\x1b[4A[###############...............]  5 of 10") || strings.Count(second, "\n") != 4 {
		t.Errorf("redrawn: %q", second)
	}
	if !strings.Contains(second, "  requests            12  sent\x1b[K\n") {
		t.Errorf("redrawn: %q", second)
	}
	out.Reset()
	if s.Show(numbers(10)); strings.Contains(out.String(), "\x1b[4A") {
		t.Errorf("what has ended was drawn over: %q", out.String())
	}
}

func TestColour(t *testing.T) {
	t.Parallel()
	for _, colour := range []bool{true, false} {
		var out bytes.Buffer
		s := &Screen{out: &out, terminal: true, colour: colour, width: wide}
		s.Show(numbers(1))
		if got := strings.Contains(out.String(), green); got != colour {
			t.Errorf("colour %t: %q", colour, out.String())
		}
	}
}

func TestPlainLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := New(&out)
	for range 3 {
		s.Show(numbers(4))
	}
	s.End(numbers(10))
	want := "  3s  4 of 10 answered  requests 12  replays 3\n  3s  10 of 10 answered  requests 12  replays 3\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

var escapes = regexp.MustCompile("\x1b\\[[0-9]*[a-zA-Z]")

// TestNoLineWraps: a line that wraps is two, and the next drawing would begin one too low.
func TestNoLineWraps(t *testing.T) {
	t.Parallel()
	n := numbers(5)
	n.Rows = append(n.Rows, Row{"provider faults", 1234567, strings.Repeat("timeouts, ", 20)})
	for _, columns := range []int{1, 20, 40, 80, 132} {
		var out bytes.Buffer
		s := &Screen{out: &out, terminal: true, colour: true, width: func() int { return columns }}
		s.Show(n)
		longest := 0
		for line := range strings.Lines(escapes.ReplaceAllString(out.String(), "")) {
			longest = max(longest, len(strings.TrimSuffix(line, "\n")))
		}
		if longest != columns-1 {
			t.Errorf("on %d columns the longest line has %d: %q", columns, longest, out.String())
		}
	}
}

func TestListsAreBroken(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &Screen{out: &out, width: func() int { return 30 }}
	s.List("Faults:", []string{"3 cut off", "10 sent twice", "1 left before the answer"})
	s.List("None:", nil)
	if want := "Faults: 3 cut off,\n  10 sent twice,\n  1 left before the answer\nNone:\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
