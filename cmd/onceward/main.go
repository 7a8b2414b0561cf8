// Command onceward is the operator's tool of Onceward.
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

// interrupts end with the user's first and second Ctrl-C: the first stops the command in order, the second at once.
type interrupts struct{ first, second context.Context }

func main() {
	var ends interrupts
	ends.first, ends.second = interrupt.Listen()
	if err := run(ends, os.Args[1:], os.Stdout); err != nil {
		os.Exit(report(err))
	}
}

// report prints an error, unless the command has printed it, and returns the exit code.
func report(err error) int {
	if text := err.Error(); text != "" {
		fmt.Fprintln(os.Stderr, "onceward:", output.Lines(text))
	}
	return exitCode(err)
}

// run executes one command line and writes its output to out. A failed write is an error: a list that a full disk cut
// short must not look complete.
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

// exactly takes an argument as it is. The parser's own decoding goes through JSON, which replaces bytes that are not
// UTF-8: two different keys would become the same third one.
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

// understood rewrites the arguments for the parser.
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

// joinNegative joins a flag and a negative number after it, which the parser would take for another flag: the command
// has a better message for a number that is too small. What follows -- is no flag.
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

// helpFor returns the command that shows the help for these arguments.
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
