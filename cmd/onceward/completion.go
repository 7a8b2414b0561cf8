package main

import (
	"fmt"
	"io"

	"github.com/alecthomas/kong"
	"github.com/onceward/onceward/cmd/onceward/internal/complete"
)

// completionCommand prints a shell's completion script.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish."`
}

// Help returns how to install the script.
func (completionCommand) Help() string {
	return `bash: add to ~/.bashrc: source <(onceward completion bash)
zsh: add to ~/.zshrc, behind compinit: source <(onceward completion zsh)
fish: onceward completion fish > ~/.config/fish/completions/onceward.fish`
}

// Run prints the script.
func (c *completionCommand) Run(out io.Writer) error {
	script, err := complete.Script(c.Shell, "onceward")
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, script)
	return err
}

// completeWords is the hidden command that completion scripts call.
type completeWords struct {
	Words []string `arg:"" optional:"" passthrough:""`
}

// Run prints the possible words.
func (c *completeWords) Run(app *kong.Context, out io.Writer) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	for _, word := range complete.Words(app.Model.Node, words) {
		fmt.Fprintln(out, word)
	}
	return nil
}
