package watchdog

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// goroutine is one of those that [runtime.Stack] describes.
type goroutine struct {
	// id is its number, and state what it is doing, such as "chan receive".
	id, state string
	// frames are the calls that it is in, the innermost first.
	frames []frame
	text   string
}

// frame is one call.
type frame struct {
	function, file string
	line           int
}

// parse reads what [runtime.Stack] wrote.
func parse(stacks string) (all []goroutine) {
	for text := range strings.SplitSeq(stacks, "\n\n") {
		head, calls, _ := strings.Cut(text, "\n")
		id, state, found := strings.Cut(strings.TrimPrefix(head, "goroutine "), " [")
		if !found {
			continue
		}
		state, _, _ = strings.Cut(strings.TrimSuffix(state, "]:"), ", ")
		all = append(all, goroutine{id: id, state: state, frames: parseFrames(calls), text: text})
	}
	return all
}

// parseFrames reads pairs of lines: a function with its arguments, and where it is at.
func parseFrames(calls string) (frames []frame) {
	lines := strings.Split(calls, "\n")
	for i := 0; i+1 < len(lines) && !strings.HasPrefix(lines[i], "created by "); i += 2 {
		f := frame{function: lines[i]}
		if arguments := strings.LastIndexByte(f.function, '('); arguments > 0 {
			f.function = f.function[:arguments]
		}
		place, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " +0x")
		if colon := strings.LastIndexByte(place, ':'); colon > 0 {
			f.file = place[:colon]
			f.line, _ = strconv.Atoi(place[colon+1:]) // what is no number is no line
		}
		frames = append(frames, f)
	}
	return frames
}

// runsTest reports whether it is that of a test which is neither waiting for its turn nor for its subtests.
func (g *goroutine) runsTest() bool {
	last := len(g.frames) - 1
	return last > 0 && g.frames[last].function == "testing.tRunner" &&
		!strings.HasPrefix(g.frames[0].function, "testing.") &&
		!strings.HasPrefix(g.frames[0].function, "internal/synctest.")
}

// position tells one point of a program from all others.
func (g *goroutine) position() string {
	var b strings.Builder
	for _, f := range g.frames {
		fmt.Fprintf(&b, "%s:%d\n", f.function, f.line)
	}
	return b.String()
}

// outermost is the call by which the test came to where it is: its function, or one that cleans up behind it.
func (g *goroutine) outermost() (f frame) {
	for _, f = range slices.Backward(g.frames) {
		if !strings.HasPrefix(f.function, "testing.") {
			break
		}
	}
	return f
}

// test is the function of the test.
func (g *goroutine) test() string { return path.Base(g.outermost().function) }

// point says what the test is waiting for, by the line of its package that it is at.
func (g *goroutine) point() string {
	f := g.frames[slices.IndexFunc(g.frames, func(f frame) bool { return f.pkg() == g.outermost().pkg() })]
	return fmt.Sprintf("%s, at %s:%d: %s", g.state, f.file, f.line, f.source())
}

// pkg is the package of the function.
func (f frame) pkg() string {
	base := path.Base(f.function)
	name, _, _ := strings.Cut(base, ".")
	return strings.TrimSuffix(f.function, base) + name
}

// source is the line itself, if it can be had.
func (f frame) source() string {
	text, err := os.ReadFile(f.file)
	if err != nil {
		return ""
	}
	lines := strings.Split(string(text), "\n")
	if f.line < 1 || f.line > len(lines) {
		return ""
	}
	return strings.TrimSpace(lines[f.line-1])
}
