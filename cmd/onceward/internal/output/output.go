// Package output writes what commands say: tables and paragraphs for people, JSON for programs. Neither lets what is
// stored write to the terminal.
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
	// JSON says that programs read it.
	JSON bool
	// width is how many columns there are; zero for any number, where no person looks.
	width int
	// now is what ages are counted from.
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

// asciiControls escapes what JSON would let through and a terminal may obey: outside of ASCII, such runes are in
// strings alone.
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

// escaped is a rune as JSON writes it in ASCII: in UTF-16.
func escaped(r rune) string {
	if r <= 0xffff {
		return fmt.Sprintf(`\u%04x`, r)
	}
	r -= 0x10000
	return fmt.Sprintf(`\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
}

// Line writes a line for people. What is stored comes as [Text].
func (o *Output) Line(format string, args ...any) {
	fmt.Fprintf(o.out, format+"\n", args...)
}

// Time shows a moment as people read it: by the local clock, with its age. A zero time is a dash.
func (o *Output) Time(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%s (%s)", Moment(t), o.Age(t))
}

// Moment shows a moment by the local clock; a zero time is a dash.
func Moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.RFC3339)
}

// Instant shows a moment to the millisecond, for what happens in quick succession.
func Instant(t time.Time) string { return t.Local().Format("2006-01-02T15:04:05.000Z07:00") }

// Age says how long ago a moment was, or how far ahead it is; a zero time is a dash.
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

// Old says how old something is, in fewer words than [Output.Age]; a zero time is a dash.
func (o *Output) Old(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return Span(max(o.now().Sub(t), 0))
}

// Span writes a duration with the two units that matter.
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

// clear puts the cursor of a terminal into the first line of an empty screen.
const clear = "\x1b[H\x1b[2J"

// Watch draws again and again until the context ends, at once and then after each pause. What was drawn before is
// cleared where a terminal can do that. The end of the context is no error: it is how a person stops looking. Once it
// has drawn, a failure does not end it, but is shown: what is worth watching may be away for a while.
func (o *Output) Watch(ctx context.Context, every time.Duration, draw func(*Output) error) error {
	for first := true; ; first = false {
		// What is drawn is gathered first, so that a slow store does not leave an empty screen.
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
