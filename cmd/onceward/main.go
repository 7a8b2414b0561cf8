// Command onceward runs the tools of Onceward.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// commands is the command line, one field a subcommand.
type commands struct {
	Demo      demoCommand    `cmd:"" help:"Run a payments system under clients and a provider that fail, and count what came of it."`
	Doctor    doctorCommand  `cmd:"" help:"Try what a store really does, and name what would break a promise."`
	Version   versionCommand `cmd:"" help:"Say which version this is."`
	DemoChild demoChild      `cmd:"" hidden:""`

	ShowVersion versionFlag `name:"version" help:"Say which version this is."`
}

// interrupts are what a user at the terminal can do: the first ends the command in order, the second cuts the order
// short.
type interrupts struct{ first, second context.Context }

func main() {
	if err := run(listen(), os.Args[1:], os.Stdout); err != nil {
		os.Exit(report(err))
	}
}

// report says what went wrong, and returns the exit status for it.
func report(err error) (status int) {
	if err.Error() != "" {
		fmt.Fprintln(os.Stderr, "onceward:", err)
	}
	if ended, ok := errors.AsType[doctorError](err); ok {
		return ended.status
	}
	return 1
}

// listen waits for interrupts. The third one ends the program where it is.
func listen() interrupts {
	first, endInOrder := context.WithCancel(context.Background())
	second, endNow := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		endInOrder()
		<-signals
		signal.Stop(signals)
		endNow()
	}()
	return interrupts{first, second}
}

// run executes one command line. What the command says goes to out.
func run(ends interrupts, args []string, out io.Writer) error {
	parser, err := kong.New(&commands{}, kong.Name("onceward"),
		kong.Description("Onceward: the work happens once, and every retry gets the same answer."),
		kong.Writers(out, out), kong.Bind(ends), kong.BindTo(out, (*io.Writer)(nil)))
	if err != nil {
		return err
	}
	command, err := parser.Parse(understood(args))
	if err != nil {
		return fmt.Errorf("%w\n%s shows what there is", err, helpFor(args))
	}
	return command.Run()
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
// number is too small is said better by who knows what it is for.
func joinNegative(args []string) []string {
	var joined []string
	for _, arg := range args {
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
func helpFor(args []string) string {
	if len(args) > 0 && args[0] == "demo" {
		return "onceward demo --help"
	}
	return "onceward --help"
}
