// Command onceward runs the tools of Onceward.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/demo/terminal"
	"github.com/onceward/onceward/internal/interrupt"
)

// commands is the command line, one field a subcommand.
type commands struct {
	Demo    demoCommand    `cmd:"" group:"try" help:"Run a payments system under clients and a provider that fail, and count the results."`
	Version versionCommand `cmd:"" group:"try" help:"Show the version."`

	Keys    keysCommand    `cmd:"" group:"operate" help:"Look at records, keep them for longer, remove them."`
	Unknown unknownCommand `cmd:"" group:"operate" help:"Settle operations with an unknown outcome."`
	Dead    deadCommand    `cmd:"" group:"operate" help:"Settle operations that wait for a person."`
	Outbox  outboxCommand  `cmd:"" group:"operate" help:"Look at messages; retry or discard dead letters."`
	Audit   auditCommand   `cmd:"" group:"operate" help:"Show who did what, when and why."`
	Stats   statsCommand   `cmd:"" group:"operate" help:"Count records and messages."`
	Top     topCommand     `cmd:"" group:"operate" help:"Show live what happens."`
	Migrate migrateCommand `cmd:"" group:"operate" help:"Create or update a database's tables, or show what is missing."`
	Doctor  doctorCommand  `cmd:"" group:"operate" help:"Test what a store really does, and report what would break a promise."`
	Health  healthCommand  `cmd:"" group:"operate" help:"Check whether a person should look: exit code 0 if all is well, 1 if not."`

	Completion completionCommand `cmd:"" group:"try" help:"Print a shell's completion script."`

	DemoChild     demoChild     `cmd:"" hidden:""`
	CompleteWords completeWords `cmd:"" hidden:"" name:"complete-words"`

	ShowVersion versionFlag `name:"version" help:"Show the version."`
}

// interrupts are what a user at the terminal can do: the first ends the command in order, the second cuts the order
// short.
type interrupts struct{ first, second context.Context }

func main() {
	var ends interrupts
	ends.first, ends.second = interrupt.Listen()
	if err := run(ends, os.Args[1:], os.Stdout); err != nil {
		os.Exit(report(err))
	}
}

// report says what went wrong, unless the command has said it, and returns the exit code.
func report(err error) int {
	if text := err.Error(); text != "" {
		fmt.Fprintln(os.Stderr, "onceward:", output.Lines(text))
	}
	return exitCode(err)
}

// run executes one command line. What the command says goes to out.
// What could not be written is an error: a list that was cut short by a full disk is not all there is.
func run(ends interrupts, args []string, out io.Writer) error {
	checked := terminal.Check(out)
	parser, err := newParser(ends, checked)
	if err != nil {
		return err
	}
	parser.Exit = func(code int) { // behind help and the version
		if err := checked.Err(); err != nil {
			code = report(err)
		}
		os.Exit(code)
	}
	command, err := parser.Parse(understood(args))
	if err != nil {
		return operate.Usage("%v\n%s shows what there is", err, helpFor(parser.Model.Node, args))
	}
	if err := command.Run(); err != nil {
		return err
	}
	return checked.Err()
}

// newParser makes the parser of command lines.
func newParser(ends interrupts, out io.Writer) (*kong.Kong, error) {
	return kong.New(&commands{}, kong.Name("onceward"),
		kong.Description("Onceward: the work happens once, and every retry gets the same answer."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ExplicitGroups([]kong.Group{
			{Key: "operate", Title: "Operate a store"}, {Key: "try", Title: "More"},
		}),
		kong.Writers(out, out), kong.Bind(ends), kong.BindTo(out, (*io.Writer)(nil)),
		kong.KindMapper(reflect.String, kong.MapperFunc(exactly)))
}

// exactly takes an argument as it is. The parser's own way goes through JSON, which replaces what is not UTF-8: of two
// keys that differ in such a byte, both would be a third one.
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

// joinNegative joins a flag and the negative number behind it, which the parser would take for another flag: that the
// number is too small is said better by who knows what it is for. What is behind -- is no flag.
func joinNegative(args []string) []string {
	var joined []string
	for i, arg := range args {
		if arg == "--" {
			return append(joined, args[i:]...)
		}
		last := len(joined) - 1
		if last >= 0 && negative.MatchString(arg) && strings.HasPrefix(joined[last], "--") &&
			!strings.Contains(joined[last], "=") {
			joined[last] += "=" + arg
			continue
		}
		joined = append(joined, arg)
	}
	return joined
}

// helpFor is the command that helps a user who has typed these arguments.
func helpFor(node *kong.Node, args []string) string {
	help := "onceward"
	for _, arg := range args {
		at := slices.IndexFunc(node.Children, func(child *kong.Node) bool { return child.Name == arg })
		if at < 0 {
			break
		}
		node = node.Children[at]
		help += " " + arg
	}
	return help + " --help"
}
