package output

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// hostile is what a stranger may put into a key, a scope or an error.
const hostile = "a\x1b[31m\x1b]0;title\x07\r\nb\u009b2J\u202ec\xff\\ \x7f é"

func TestText(t *testing.T) {
	t.Parallel()
	want := `a\x1b[31m\x1b]0;title\a\r\nb\u009b2J\u202ec\xff\\ \x7f é`
	if got := Text(hostile); got != want {
		t.Errorf("shown as %q, want %q", got, want)
	}
	for _, plain := range []string{"", "order-7", "Zahlung für Jörg"} {
		if Text(plain) != plain {
			t.Errorf("%q is shown as %q", plain, Text(plain))
		}
	}
	if got := Lines("{\n\t\"a\": 1\x1b\n}"); got != "{\n\t\"a\": 1\\x1b\n}" {
		t.Errorf("a body is shown as %q", got)
	}
}

func TestShell(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"order-7": "order-7", "": "''", "it's": `'it'\''s'`, "a b": "'a b'", "$(rm)": "'$(rm)'",
		"\x1b'\n": `$'\x1b\'\x0a'`,
	} {
		if got := Shell(text); got != want {
			t.Errorf("%q is written %s, want %s", text, got, want)
		}
	}
}

// TestJSONIsSafe: what a program reads is what was there, and a terminal that is shown it obeys nothing.
func TestJSONIsSafe(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	valid := strings.ToValidUTF8(hostile, "?") + "\U000e0001<&>"
	if err := New(&b, true).Object(map[string]string{"text": valid}); err != nil {
		t.Fatal(err)
	}
	line := strings.TrimSuffix(b.String(), "\n")
	if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("not all of it can be printed: %q", line)
	}
	var read map[string]string
	if err := json.Unmarshal(b.Bytes(), &read); err != nil || read["text"] != valid {
		t.Errorf("read back as %q, %v", read["text"], err)
	}
}

// TestTableFits: no line wraps, and cells stay in their columns.
func TestTableFits(t *testing.T) {
	t.Parallel()
	for _, width := range []int{0, 40, 60, 80} {
		var b bytes.Buffer
		o := &Output{out: &b, width: width, now: time.Now}
		table := NewTable("HASH", "KEY", "STATE").Whole(1)
		table.Add("0123456789abcdef", strings.Repeat("é", 40), "unknown")
		table.Add("0123456789abcdef", "k", "completed")
		o.Table(table)
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) != 3 {
			t.Fatalf("%d lines: %q", len(lines), lines)
		}
		for _, line := range lines {
			if !strings.HasPrefix(line, "0123456789abcdef ") && !strings.HasPrefix(line, "HASH ") {
				t.Errorf("on %d columns a hash is cut: %q", width, line)
			}
			if width > 0 && utf8.RuneCountInString(line) >= width {
				t.Errorf("on %d columns: %q", width, line)
			}
		}
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 17, 8, 0, 0, 0, time.UTC)
	o := &Output{now: func() time.Time { return now }}
	for at, want := range map[time.Duration]string{
		-5 * time.Second: "5s ago", 3 * time.Minute: "in 3m00s", -90 * time.Minute: "1h30m ago",
		-100 * time.Hour: "4d04h ago", 0: "under 1s ago",
	} {
		if got := o.Age(now.Add(at)); got != want {
			t.Errorf("%s is %q, want %q", at, got, want)
		}
	}
	if o.Time(time.Time{}) != "-" {
		t.Error("no time is not a dash")
	}
}

// TestWatch: it draws until its context ends, and that is no error.
func TestWatch(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var b bytes.Buffer
	times := 0
	err := New(&b, false).Watch(ctx, time.Millisecond, func(o *Output) error {
		switch times++; times {
		case 2:
			return errors.New("away\x1b")
		case 4:
			cancel()
			return ctx.Err()
		}
		o.Line("drawn %d", times)
		return nil
	})
	drawn := strings.Split(b.String(), "\n\n")
	if err != nil || len(drawn) != 4 || drawn[0] != "drawn 1" || !strings.HasSuffix(drawn[1], `: away\x1b`) || drawn[2] != "drawn 3" {
		t.Errorf("%v, %q", err, drawn)
	}
	if err := New(&b, false).Watch(t.Context(), time.Millisecond, func(*Output) error { return io.EOF }); err != io.EOF {
		t.Errorf("what fails at once ends with %v", err)
	}
}
