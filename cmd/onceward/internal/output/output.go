// Package output writes the output of commands: tables and paragraphs for people, JSON for programs. Stored text cannot
// control the terminal in either.
package output

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
	"unicode"

	"github.com/onceward/onceward/demo/terminal"
)

// Output is where a command writes.
type Output struct {
	out io.Writer
	// JSON selects output for programs.
	JSON bool
	// width is the number of columns of the terminal; zero if the output is not a terminal.
	width int
	// now returns the moment from which ages are counted.
	now func() time.Time
}

// New returns an output for people, or for programs if asJSON is set.
func New(out io.Writer, asJSON bool) *Output {
	o := &Output{out: out, JSON: asJSON, now: time.Now}
	if terminal.Is(out) {
		o.width = terminal.Width(out)
	}
	return o
}

// Object writes a value as one line of JSON.
func (o *Output) Object(value any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	_, err := io.WriteString(o.out, asciiControls(b.String()))
	return err
}

// asciiControls escapes control characters that JSON allows and a terminal may obey. Outside of ASCII, they can only be
// in strings.
func asciiControls(line string) string {
	var b bytes.Buffer
	for _, r := range line {
		if r == 0x7f || r > unicode.MaxASCII && !unicode.IsPrint(r) {
			b.WriteString(escaped(r))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// escaped returns a rune as JSON writes it in ASCII: in UTF-16.
func escaped(r rune) string {
	if r <= 0xffff {
		return fmt.Sprintf(`\u%04x`, r)
	}
	r -= 0x10000
	return fmt.Sprintf(`\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
}

// Line writes a line for people. Stored text has to be passed through [Text].
func (o *Output) Line(format string, args ...any) {
	fmt.Fprintf(o.out, format+"\n", args...)
}

// Time returns a moment by the local clock, with its age. A zero time is a dash.
func (o *Output) Time(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%s (%s)", Moment(t), o.Age(t))
}

// Moment returns a moment by the local clock; a zero time is a dash.
func Moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.RFC3339)
}

// Instant returns a moment to the millisecond, for events in quick succession.
func Instant(t time.Time) string { return t.Local().Format("2006-01-02T15:04:05.000Z07:00") }

// Age returns how long ago a moment was, or how far ahead it is; a zero time is a dash.
func (o *Output) Age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	age := o.now().Sub(t)
	if age < 0 {
		return "in " + Span(-age)
	}
	return Span(age) + " ago"
}

// Old returns an age in fewer words than [Output.Age]; a zero time is a dash.
func (o *Output) Old(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return Span(max(o.now().Sub(t), 0))
}

// Span returns a duration in its two largest units.
func Span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return "under 1s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 2*day:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd%02dh", d/day, d%day/time.Hour)
	}
}

// clear empties the screen of a terminal and puts the cursor into its first line.
const clear = "\x1b[H\x1b[2J"

// Watch draws at once and after each pause, until the context ends, and clears a terminal in between. The end of the
// context is no error: it is how a person stops watching. After the first drawing a failure is shown and does not end
// the watching: a store may be away for a while.
func (o *Output) Watch(ctx context.Context, every time.Duration, draw func(*Output) error) error {
	for first := true; ; first = false {
		// The drawing is gathered first, so that a slow store does not leave an empty screen.
		var b bytes.Buffer
		gathered := *o
		gathered.out = &b
		err := draw(&gathered)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil && (first || o.JSON):
			return err
		case err != nil:
			gathered.Line("%s: %s", Moment(o.now()), Text(err.Error()))
		}
		if terminal.Moves(o.out) && !o.JSON {
			b = *bytes.NewBufferString(clear + b.String())
		} else if !o.JSON {
			b.WriteString("\n")
		}
		if _, err := b.WriteTo(o.out); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}
