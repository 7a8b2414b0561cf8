// Command release checks that the modules of this repository can be released together at one version, and prints the
// tags and the git commands that do it. It neither tags nor pushes: that is left to a person who has read what it says.
//
//	release check vX.Y.Z    check, build each module as a user would get it, and print the commands
//	release set vX.Y.Z      make the Makefile, every go.mod and go.work name the version
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/onceward/onceward/lab/modules"
)

var errUsage = errors.New("usage: release check|set vX.Y.Z")

func run(ctx context.Context, root string, args []string, out io.Writer) error {
	if len(args) != 2 {
		return errUsage
	}
	command, version := args[0], args[1]
	tree, err := modules.Load(ctx, root)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(out, "# "+format+"\n", args...) }
	switch command {
	case "check":
		if err := check(ctx, tree, version); err != nil {
			return err
		}
		if err := checkBuild(ctx, tree, version, say); err != nil {
			return err
		}
		say("%s can be released. Nothing was tagged or pushed; these commands do it:", version)
		printCommands(out, tree, version)
		return nil
	case "set":
		return set(ctx, tree, version)
	default:
		return errUsage
	}
}

// set makes everything name the version.
func set(ctx context.Context, tree *modules.Tree, version string) error {
	if err := checkForm(version); err != nil {
		return err
	}
	if err := tree.SetVersion(version); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "sh", filepath.Join("scripts", "workspace.sh"))
	cmd.Dir, cmd.Stderr = tree.Root, os.Stderr
	return cmd.Run()
}

// printCommands prints one tag for each module, and one push for all: a proxy that sees some of them would serve
// modules that require what is not there.
func printCommands(out io.Writer, tree *modules.Tree, version string) {
	var tags []string
	for _, m := range tree.Modules {
		tags = append(tags, m.Tag(version))
		fmt.Fprintf(out, "git tag -a %s -m 'Release %s'\n", m.Tag(version), version)
	}
	fmt.Fprintf(out, "git push --atomic origin %s\n", strings.Join(tags, " "))
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, ".", os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}
