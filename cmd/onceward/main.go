// Command onceward runs the tools of Onceward.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// commands is the command line, one field a subcommand.
type commands struct {
	Demo      demoCommand `cmd:"" help:"Run a payments system under clients and a provider that fail, and count what came of it."`
	DemoChild demoChild   `cmd:"" hidden:""`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt does not wait for an orderly end
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "onceward:", err)
		os.Exit(1)
	}
}

// run executes one command line. What the command says goes to out.
func run(ctx context.Context, args []string, out io.Writer) error {
	parser, err := kong.New(&commands{}, kong.Name("onceward"),
		kong.Description("Onceward: the work happens once, and every retry gets the same answer."),
		kong.UsageOnError(), kong.Writers(out, out),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.BindTo(out, (*io.Writer)(nil)))
	if err != nil {
		return err
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if err != nil {
		return err
	}
	return command.Run()
}
