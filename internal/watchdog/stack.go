package watchdog

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// goroutine is one goroutine in the output of [runtime.Stack].
type goroutine struct {
	// id is the number of the goroutine, and state its state, such as "chan receive".
	id, state string
	// frames are the goroutine's calls, the innermost first.
	frames []frame
	text   string
}

// frame is one call.
type frame struct {
	function, file string
	line           int
}

// parse parses the output of [runtime.Stack].
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

// parseFrames parses pairs of lines: a function with its arguments, and its position.
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
			f.line, _ = strconv.Atoi(place[colon+1:]) // without a number, the line is 0
		}
		frames = append(frames, f)
	}
	return frames
}

// runsTest reports whether the goroutine runs a test that waits neither for its turn nor for its subtests.
func (g *goroutine) runsTest() bool {
	last := len(g.frames) - 1
	return last > 0 && g.frames[last].function == "testing.tRunner" &&
		!strings.HasPrefix(g.frames[0].function, "testing.") &&
		!strings.HasPrefix(g.frames[0].function, "internal/synctest.")
}

// position returns a text that identifies the goroutine's point in the program.
func (g *goroutine) position() string {
	var b strings.Builder
	for _, f := range g.frames {
		fmt.Fprintf(&b, "%s:%d\n", f.function, f.line)
	}
	return b.String()
}

// outermost returns the outermost call outside of package testing: the test's function, or a cleanup function.
func (g *goroutine) outermost() (f frame) {
	for _, f = range slices.Backward(g.frames) {
		if !strings.HasPrefix(f.function, "testing.") {
			break
		}
	}
	return f
}

// test returns the name of the test's function.
func (g *goroutine) test() string { return path.Base(g.outermost().function) }

// point describes what the test is waiting for, with the current line in the test's package.
func (g *goroutine) point() string {
	f := g.frames[slices.IndexFunc(g.frames, func(f frame) bool { return f.pkg() == g.outermost().pkg() })]
	return fmt.Sprintf("%s, at %s:%d: %s", g.state, f.file, f.line, f.source())
}

// pkg returns the package of the function.
func (f frame) pkg() string {
	base := path.Base(f.function)
	name, _, _ := strings.Cut(base, ".")
	return strings.TrimSuffix(f.function, base) + name
}

// source returns the text of the line, if it can be read.
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
