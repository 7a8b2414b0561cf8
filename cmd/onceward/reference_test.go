package main

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/onceward/onceward/cmd/onceward/internal/story"
	"github.com/onceward/onceward/cmd/onceward/internal/view"
)

// The reference of docs/commands.md is made from what --help shows. ONCEWARD_UPDATE=1 writes it again.
const (
	referencePage  = moduleRoot + "/docs/commands.md"
	referenceBegin = "<!-- The rest of this section is made from --help: ONCEWARD_UPDATE=1 go test -run TestReference ./cmd/onceward -->\n"
	referenceEnd   = "<!-- The end of what is made from --help. -->\n"
)

func TestReference(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(page), referenceBegin)
	is, after, ended := strings.Cut(rest, referenceEnd)
	if !begun || !ended {
		t.Fatal("docs/commands.md has no place for the reference")
	}
	parser, err := newParser(interrupts{}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := reference(parser.Model.Node)
	if os.Getenv("ONCEWARD_UPDATE") != "" {
		written := before + referenceBegin + want + referenceEnd + after
		if err := os.WriteFile(referencePage, []byte(written), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if is != want {
		t.Error("docs/commands.md does not say what --help does: ONCEWARD_UPDATE=1 go test -run TestReference ./cmd/onceward")
	}
}

// reference writes all commands with their flags, and after them what the flags mean that many share.
func reference(app *kong.Node) string {
	var b strings.Builder
	var shared []string
	flags := make(map[string][]*kong.Flag)
	for _, leaf := range app.Leaves(true) {
		if leaf.Name == "demo" {
			continue // its page is the README
		}
		fmt.Fprintf(&b, "\n#### `%s`\n\n%s\n", usage(leaf), sentence(leaf.Help))
		var own, groups []string
		for _, flag := range leaf.Flags {
			if flag.Group == nil {
				own = append(own, "`"+named(flag)+"`")
				continue
			}
			title := flag.Group.Title
			word, _, _ := strings.Cut(strings.ToLower(title), " ")
			if link := fmt.Sprintf("[%s](#%s)", word, anchor(title)); title != "Store" && !slices.Contains(groups, link) {
				groups = append(groups, link)
			}
			if !slices.Contains(shared, title) {
				shared = append(shared, title)
			}
			known := slices.ContainsFunc(flags[title], func(f *kong.Flag) bool { return f.Name == flag.Name })
			if !known {
				flags[title] = append(flags[title], flag)
			}
		}
		if all := append(own, groups...); len(all) > 0 {
			b.WriteString(wrapped("Flags: " + strings.Join(all, ", ") + "."))
		}
	}
	for _, title := range shared {
		fmt.Fprintf(&b, "\n#### Flags: %s\n\n", strings.ToLower(title))
		for _, flag := range flags[title] {
			b.WriteString(item(flag))
		}
	}
	return b.String()
}

// usage is the command and its arguments.
func usage(leaf *kong.Node) string {
	words := leaf.FullPath()
	for _, argument := range leaf.Positional {
		words += " " + argument.Summary()
	}
	return words
}

func item(flag *kong.Flag) string {
	help := sentence(flag.Help)
	if flag.Required {
		help += " Required."
	}
	for _, variable := range flag.Envs {
		help += fmt.Sprintf(" Default: `$%s`.", variable)
	}
	return fmt.Sprintf("- `%s`: %s\n", named(flag), help)
}

// named is a flag with what it takes, or its default.
func named(flag *kong.Flag) string {
	name := "--" + flag.Name
	if flag.Short != 0 {
		name = "-" + string(flag.Short) + ", " + name
	}
	if !flag.IsBool() {
		name += "=" + strings.Trim(flag.FormatPlaceHolder(), `"`)
	}
	return strings.TrimSuffix(name, "=")
}

// wrapped breaks a paragraph into lines of at most 160 bytes.
func wrapped(text string) string {
	var b strings.Builder
	room := 0
	for _, word := range strings.Fields(text) {
		if room -= len(word) + 1; room < 0 {
			b.WriteByte('\n')
			room = 160 - len(word)
		} else {
			b.WriteByte(' ')
		}
		b.WriteString(word)
	}
	return b.String() + "\n"
}

func sentence(text string) string { return strings.TrimSuffix(text, ".") + "." }

func anchor(title string) string { return slug("flags " + title) }

// slug is the anchor of a heading.
func slug(heading string) string {
	return strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

var notInSlug = regexp.MustCompile(`[^a-z -]`)

// TestFieldsAreDocumented: programs rely on the fields of --json.
func TestFieldsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []any{
		story.Story{},
		story.Event{},
		story.Step{},
		story.Command{},
		story.Revealed{},
		view.Record{},
		view.Message{},
		view.Audit{},
		view.Execution{},
		view.Content{},
		shownMessage{},
		acted{},
		counts{},
		outboxCounts{},
		change{},
		healthReport{},
		healthCheck{},
	} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(shown)) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name != "" && !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("docs/commands.md does not have the field %s of %T", name, shown)
			}
		}
	}
}

// TestExitCodesAreDocumented: scripts rely on them.
func TestExitCodesAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	for code := exitOK; code <= exitFindings; code++ {
		if !strings.Contains(string(page), fmt.Sprintf("\n| %d | ", code)) {
			t.Errorf("docs/commands.md does not have exit code %d", code)
		}
	}
}
