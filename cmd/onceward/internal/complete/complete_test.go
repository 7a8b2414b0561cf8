package complete_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/onceward/onceward/cmd/onceward/internal/complete"
)

type line struct {
	Keys struct {
		List struct {
			State string `enum:"open,done," default:""`
			Due   bool
			Limit int `short:"n"`
		} `cmd:""`
		Show struct {
			Ref string `arg:""`
		} `cmd:""`
	} `cmd:""`
	Completion struct {
		Shell string `arg:"" enum:"bash,zsh"`
	} `cmd:""`
	Secret struct{} `cmd:"" hidden:""`
}

func TestWords(t *testing.T) {
	t.Parallel()
	parser, err := kong.New(&line{})
	if err != nil {
		t.Fatal(err)
	}
	for typed, want := range map[string]string{
		"":                             "completion keys",
		"k":                            "keys",
		"keys ":                        "list show",
		"keys list --":                 "--due --help --limit --state",
		"keys list --state ":           "done open",
		"keys list --state o":          "open",
		"keys list --state=d":          "--state=done",
		"keys list --due --s":          "--state",
		"keys list --limit ":           "",
		"keys list -n ":                "",
		"keys list --limit 5 --state ": "done open",
		"keys show ":                   "",
		"completion ":                  "bash zsh",
		"nothing ":                     "completion keys",
	} {
		got := complete.Words(parser.Model.Node, strings.Split(typed, " "))
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%q goes on with %q, want %s", typed, got, want)
		}
	}
}

func TestScript(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if script, err := complete.Script(shell, "tool"); err != nil || !strings.Contains(script, "tool complete-words --") {
			t.Errorf("%s: %q, %v", shell, script, err)
		}
	}
	if _, err := complete.Script("tcsh", "tool"); err == nil {
		t.Error("a shell that is not known has a script")
	}
}
