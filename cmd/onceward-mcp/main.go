// Command onceward-mcp is a proxy in front of a Model Context Protocol server. It lets each tool call happen once.
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

// These are the exit codes. They mean the same as in the operator's program.
const (
	exitFailed      = 1
	exitUsage       = 2 // the command line is not valid: nothing was started
	exitUnavailable = 5 // the store cannot be opened
)

// interrupts are the contexts that end the proxy: after the
// first, it waits for calls; after the second, it gives them up.
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

// newParser returns the parser of the command line.
func newParser(c *command, out io.Writer) (*kong.Kong, error) {
	return kong.New(c, kong.Name("onceward-mcp"), kong.Writers(out, out), kong.Vars{"version": version()},
		kong.Description(description),
		kong.KindMapper(reflect.String, kong.MapperFunc(exactly)))
}

// exactly takes an argument unchanged. The default mapper decodes it as JSON, which replaces invalid UTF-8.
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

// version returns the version that the go command recorded in the program.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "onceward-mcp, built from a working copy"
	}
	return "onceward-mcp " + info.Main.Version + ", " + info.GoVersion
}

// usageError is returned for a command line that is not valid.
type usageError string

func (e usageError) Error() string { return string(e) }

func usage(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

// unavailable is returned for a store that cannot be opened.
type unavailable struct{ err error }

func (e *unavailable) Error() string { return e.err.Error() }
func (e *unavailable) Unwrap() error { return e.err }

// exitCode returns the exit code for an error, by its class.
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

// printable replaces control characters, which could change the terminal: an error may contain text of the server.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
