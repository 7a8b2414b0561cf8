package main

import (
	"regexp"
	"strings"
)

// understood writes what people type in the way that the parser reads it.
func understood(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"--help"}
	case args[0] == "help":
		return append(args[1:len(args):len(args)], "--help")
	default:
		return joinNegative(args)
	}
}

var negative = regexp.MustCompile(`^-\d+$`)

// joinNegative joins a flag and the negative number behind it, which the parser would take for another flag: that the number
// is too small is said better by who knows what it is for.
func joinNegative(args []string) []string {
	var joined []string
	for _, arg := range args {
		last := len(joined) - 1
		if last >= 0 && negative.MatchString(arg) && strings.HasPrefix(joined[last], "--") && !strings.Contains(joined[last], "=") {
			joined[last] += "=" + arg
			continue
		}
		joined = append(joined, arg)
	}
	return joined
}

// helpFor is the command that helps whoever has typed these arguments.
func helpFor(args []string) string {
	if len(args) > 0 && args[0] == "demo" {
		return "onceward demo --help"
	}
	return "onceward --help"
}
