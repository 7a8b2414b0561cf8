// Command onceward-mcp stands in front of a server of the Model Context Protocol, and lets its tool calls happen once.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"unicode"

	"github.com/alecthomas/kong"

	"github.com/onceward/onceward/internal/interrupt"
)

// The exit codes, which mean the same for the operator's program.
const (
	exitFailed      = 1
	exitUsage       = 2 // nothing was started: the command line cannot be meant
	exitUnavailable = 5 // the store cannot be opened
)

// interrupts are what ends the proxy: the first waits for calls, and the second gives them up.
type interrupts struct{ first, second context.Context }

func main() {
	var ends interrupts
	ends.first, ends.second = interrupt.Listen()
	if err := run(ends, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "onceward-mcp:", printable(err.Error()))
		os.Exit(exitCode(err))
	}
}

// run executes one command line.
func run(ends interrupts, args []string, out io.Writer) error {
	var c command
	parser, err := newParser(&c, out)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	if _, err := parser.Parse(args); err != nil {
		return usage("%v\nonceward-mcp --help shows what there is", err)
	}
	return c.Run(ends, out)
}

// newParser makes the parser of the command line.
func newParser(c *command, out io.Writer) (*kong.Kong, error) {
	return kong.New(c, kong.Name("onceward-mcp"), kong.Writers(out, out), kong.Vars{"version": version()},
		kong.Description(description),
		kong.KindMapper(reflect.String, kong.MapperFunc(exactly)))
}

// exactly takes an argument as it is. The parser's own way goes through JSON, which replaces what is not UTF-8.
func exactly(at *kong.DecodeContext, target reflect.Value) error {
	token, err := at.Scan.PopValue("string")
	if err != nil {
		return err
	}
	text, ok := token.Value.(string)
	if !ok {
		return fmt.Errorf("want a text, not %v", token.Value)
	}
	target.SetString(text)
	return nil
}

// version is what the go command has noted in the program.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "onceward-mcp, built from a working copy"
	}
	return "onceward-mcp " + info.Main.Version + ", " + info.GoVersion
}

// usageError is returned for a command line that cannot be meant.
type usageError string

func (e usageError) Error() string { return string(e) }

func usage(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

// unavailable is returned for a store that cannot be opened.
type unavailable struct{ err error }

func (e *unavailable) Error() string { return e.err.Error() }
func (e *unavailable) Unwrap() error { return e.err }

// exitCode returns how the program ends, by the class of its error.
func exitCode(err error) int {
	var unopened *unavailable
	switch {
	case errors.As(err, new(usageError)), errors.Is(err, errors.ErrUnsupported):
		return exitUsage
	case errors.As(err, &unopened):
		return exitUnavailable
	default:
		return exitFailed
	}
}

// printable replaces what would write to the terminal: an error may have a text of the server in it.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
