package main

import (
	"fmt"
	"io"
	"runtime/debug"

	"github.com/alecthomas/kong"
)

// versionCommand prints the version.
type versionCommand struct{}

// Run prints the version.
func (versionCommand) Run(out io.Writer) error {
	_, err := fmt.Fprintln(out, version())
	return err
}

// versionFlag is the same as a flag.
type versionFlag bool

// BeforeReset prints the version before the rest of the command line is checked, and ends the program.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	fmt.Fprintln(app.Stdout, version())
	app.Exit(0)
	return nil
}

// version returns the version that the go command has recorded in the program.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "onceward, of an unknown version"
	}
	text := "onceward " + info.Main.Version
	if info.Main.Version == "" || info.Main.Version == "(devel)" {
		text = "onceward, built from a working copy"
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			text += ", commit " + setting.Value[:min(12, len(setting.Value))]
		}
		if setting.Key == "vcs.modified" && setting.Value == "true" {
			text += " with changes"
		}
	}
	return text + ", " + info.GoVersion
}
