package demo

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// again is the command line that runs the same demo, with further flags in front. It can be pasted into a shell; only a
// password is left out, which hint then says.
func (w *world) again(flags ...string) (line, hint string) {
	words := append([]string{program(), "demo"}, flags...)
	if w.config.Processes > 1 {
		words = append(words, fmt.Sprintf("--processes %d", w.config.Processes))
	}
	if w.config.InFlight != "" && w.config.InFlight != "conflict" {
		words = append(words, "--in-flight "+w.config.InFlight)
	}
	if w.config.Unprotected {
		words = append(words, "--unprotected")
	}
	if !w.dir.temporary {
		words = append(words, "--dir "+quoted(w.dir.path))
	}
	if w.config.Store != "" {
		store, had := withoutPassword(w.config.Store)
		words = append(words, "--store "+quoted(store))
		if had {
			hint = "with the password in PGPASSWORD"
		}
	}
	return strings.Join(words, " "), hint
}

// cached is where the go command keeps the programs that it has run.
var cached = regexp.MustCompile(`go-build|[/\\][0-9a-f]{64}-d[/\\]`)

// program is how this program was called. What `go run` has built is gone when the program ends.
func program() string {
	if cached.MatchString(os.Args[0]) {
		return "go run ./cmd/onceward"
	}
	return quoted(os.Args[0])
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quoted writes a word so that a shell takes it as it is.
func quoted(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
