// Package screen shows the progress of a demo: a table that is redrawn
// in place on a terminal, or a line every few seconds on other outputs.
package screen

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/onceward/onceward/demo/terminal"
)

// Row is one line of the table.
type Row struct {
	Name  string
	Value int
	// Means is what is counted, in a few words.
	Means string
}

// Numbers are the contents of the table.
type Numbers struct {
	// Doing is the current activity.
	Doing string
	// Done of Total is the progress.
	Done, Total int
	Elapsed     time.Duration
	Rows        []Row
}

// Screen draws the table. It is not safe for concurrent use.
type Screen struct {
	out      io.Writer
	terminal bool
	colour   bool
	width    func() int // returns the current width
	drawn    int        // the number of lines on the terminal
	last     time.Time  // the time of the last plain line
}

// New returns a screen. It draws if out is a terminal that can move its cursor, in colour unless NO_COLOR is set.
func New(out io.Writer) *Screen {
	moves := terminal.Moves(out)
	return &Screen{
		out: out, terminal: moves, colour: moves && os.Getenv("NO_COLOR") == "",
		width: func() int { return terminal.Width(out) },
	}
}

// plainEvery is the time between two lines on an output that is not a terminal.
const plainEvery = 2 * time.Second

// Show draws the numbers over the previous ones. On an output that is not a terminal, most calls do nothing.
func (s *Screen) Show(n Numbers) {
	switch {
	case s.terminal:
		s.draw(n)
	case time.Since(s.last) >= plainEvery:
		s.last = time.Now()
		fmt.Fprintln(s.out, line(n))
	}
}

// End draws the numbers for the last time, and leaves them on the screen.
func (s *Screen) End(n Numbers) {
	if s.terminal {
		s.draw(n)
		s.drawn = 0
		return
	}
	fmt.Fprintln(s.out, line(n))
}

// List prints a title followed by items, in as many lines as the width of the terminal requires.
func (s *Screen) List(title string, items []string) {
	text := title
	width := len(title)
	for i, item := range items {
		if i < len(items)-1 {
			item += ","
		}
		if width+1+len(item) >= s.width() {
			text, width = text+"\n ", 1
		}
		text, width = text+" "+item, width+1+len(item)
	}
	fmt.Fprintln(s.out, text)
}

const (
	up         = "\x1b[%dA"
	clearRight = "\x1b[K"
	bold       = "\x1b[1m"
	dim        = "\x1b[2m"
	green      = "\x1b[32m"
	plain      = "\x1b[0m"
)

func (s *Screen) draw(n Numbers) {
	var text strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&text, up, s.drawn)
	}
	lines := s.table(n, s.width())
	for _, l := range lines {
		text.WriteString(l + clearRight + "\n")
	}
	s.drawn = len(lines)
	_, _ = io.WriteString(s.out, text.String()) // the loss of the terminal ends the program
}

// piece is a part of a line, in one colour or in none.
type piece struct{ colour, text string }

// table returns the lines of the table. No line wraps, because otherwise the next table could not be drawn over it.
func (s *Screen) table(n Numbers, width int) []string {
	status := fmt.Sprintf("  %d of %d answered  %ds  %s", n.Done, n.Total, int(n.Elapsed.Seconds()), n.Doing)
	lines := []string{s.fit(width, piece{green, bar(n.Done, n.Total)}, piece{"", status}), ""}
	for _, r := range n.Rows {
		lines = append(lines, s.fit(width,
			piece{"", fmt.Sprintf("  %-15s", r.Name)}, piece{bold, fmt.Sprintf("%7d", r.Value)}, piece{dim, "  " + r.Means}))
	}
	return lines
}

// fit joins the pieces of a line, and cuts it to the width of the terminal. The
// last column stays free: terminals differ in where the cursor is after it.
func (s *Screen) fit(width int, pieces ...piece) string {
	var line strings.Builder
	room := width - 1
	for _, p := range pieces {
		text := []rune(p.text)
		text = text[:min(len(text), max(room, 0))]
		room -= len(text)
		line.WriteString(s.paint(p.colour, string(text)))
	}
	return line.String()
}

func (s *Screen) paint(colour, text string) string {
	if !s.colour || colour == "" || text == "" {
		return text
	}
	return colour + text + plain
}

const barWidth = 30

func bar(done, total int) string {
	full := 0
	if total > 0 {
		full = barWidth * min(done, total) / total
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "]"
}

// line returns the numbers in one line.
func line(n Numbers) string {
	parts := []string{fmt.Sprintf("%3ds  %d of %d answered", int(n.Elapsed.Seconds()), n.Done, n.Total)}
	for _, r := range n.Rows {
		parts = append(parts, fmt.Sprintf("%s %d", r.Name, r.Value))
	}
	return strings.Join(parts, "  ")
}
