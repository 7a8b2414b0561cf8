// Package complete tells a shell how a command line may go on, from the parser's own model of it: so there is nothing
// to keep in step. What a shell needs is a few lines that ask the program.
package complete

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Command is the name of the hidden command that shells ask with.
const Command = "complete-words"

// scripts are what each shell needs, of the program's name.
var scripts = map[string]string{
	"bash": `_%[1]s() {
	local IFS=$'\n'
	COMPREPLY=($(%[1]s ` + Command + ` -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _%[1]s %[1]s
`,
	"zsh": `#compdef %[1]s
_%[1]s() {
	local -a found
	found=(${(f)"$(%[1]s ` + Command + ` -- "${(@)words[2,$CURRENT]}" 2>/dev/null)"})
	if (( $#found )); then compadd -a found; else _files; fi
}
compdef _%[1]s %[1]s
`,
	// Files are offered only where the program knows nothing.
	"fish": `function __%[1]s_complete
	set -l found (%[1]s ` + Command + ` -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
	if test (count $found) -gt 0
		printf '%%s\n' $found
	else
		__fish_complete_path (commandline -ct)
	end
end
complete -c %[1]s -f -a '(__%[1]s_complete)'
`,
}

// Script is what a shell needs to complete a program's command lines.
func Script(shell, program string) (string, error) {
	script, found := scripts[shell]
	if !found {
		return "", fmt.Errorf("there is no completion for %s: bash, zsh and fish have one", shell)
	}
	return fmt.Sprintf(script, program), nil
}

// Words returns how the last of the words may go on, which may be empty. The others are complete.
func Words(app *kong.Node, words []string) []string {
	if len(words) == 0 {
		words = []string{""}
	}
	node, flag := follow(app, words[:len(words)-1])
	last := words[len(words)-1]
	name, value, assigned := strings.Cut(last, "=")
	switch {
	case flag != nil:
		return begin(values(flag), last, "")
	case assigned && strings.HasPrefix(name, "-"):
		return begin(values(find(node, name)), value, name+"=")
	case strings.HasPrefix(last, "-"):
		return begin(flags(node), last, "")
	default:
		return begin(commands(node), last, "")
	}
}

// follow goes along complete words, to the command that they name, and the flag that waits for its value, if one does.
func follow(node *kong.Node, words []string) (*kong.Node, *kong.Flag) {
	var waiting *kong.Flag
	for _, word := range words {
		switch {
		case waiting != nil:
			waiting = nil
		case strings.HasPrefix(word, "-"):
			if flag := find(node, word); flag != nil && !flag.IsBool() {
				waiting = flag
			}
		default:
			for _, child := range node.Children {
				if child.Name == word {
					node = child
					break
				}
			}
		}
	}
	return node, waiting
}

// find finds a flag of a command, or of those above it, by a word of the command line.
func find(node *kong.Node, word string) *kong.Flag {
	for _, group := range node.AllFlags(true) {
		for _, flag := range group {
			if word == "--"+flag.Name || flag.Short != 0 && word == "-"+string(flag.Short) {
				return flag
			}
		}
	}
	return nil
}

func flags(node *kong.Node) (names []string) {
	for _, group := range node.AllFlags(true) {
		for _, flag := range group {
			names = append(names, "--"+flag.Name)
		}
	}
	return names
}

func commands(node *kong.Node) (names []string) {
	for _, child := range node.Children {
		if !child.Hidden {
			names = append(names, child.Name)
		}
	}
	for _, argument := range node.Positional {
		names = append(names, argument.EnumSlice()...)
	}
	return names
}

// values are what a flag can be, if it says so.
func values(flag *kong.Flag) []string {
	if flag == nil {
		return nil
	}
	return flag.EnumSlice()
}

// begin returns those that begin so, sorted, each behind a prefix.
func begin(all []string, so, prefix string) (some []string) {
	for _, one := range all {
		if one != "" && strings.HasPrefix(one, so) {
			some = append(some, prefix+one)
		}
	}
	slices.Sort(some)
	return slices.Compact(some)
}
