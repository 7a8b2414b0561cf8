package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

// The flags in docs/mcp.md are made from what --help shows: the first sentence and the default. ONCEWARD_UPDATE=1
// writes them again.
const (
	referencePage  = "../../docs/mcp.md"
	referenceBegin = "<!-- The flags are made from --help: ONCEWARD_UPDATE=1 go test -run TestReference ./cmd/onceward-mcp -->\n"
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
		t.Fatal("docs/mcp.md has no place for the flags")
	}
	parser, err := newParser(new(command), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	group := ""
	for _, flag := range parser.Model.Flags {
		if flag.Group == nil {
			continue // --help and --version
		}
		if flag.Group.Title != group {
			group = flag.Group.Title
			fmt.Fprintf(&want, "\n%s:\n\n", group)
		}
		help, more, _ := strings.Cut(strings.TrimSuffix(flag.Help, "."), ". ")
		if _, value, found := strings.Cut(more, "Default: "); found {
			help += ". Default: " + value
		}
		help += "."
		for _, variable := range flag.Envs {
			help += fmt.Sprintf(" Default: the environment's `%s`.", variable)
		}
		fmt.Fprintf(&want, "- `--%s=%s`: %s\n", flag.Name, strings.Trim(flag.FormatPlaceHolder(), `"`), help)
	}
	want.WriteString("\n")
	if os.Getenv("ONCEWARD_UPDATE") != "" {
		written := before + referenceBegin + want.String() + referenceEnd + after
		if err := os.WriteFile(referencePage, []byte(written), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if is != want.String() {
		t.Error("docs/mcp.md does not have what --help does: ONCEWARD_UPDATE=1 go test -run TestReference ./cmd/onceward-mcp")
	}
}
