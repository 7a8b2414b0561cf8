// Command bench measures Onceward against its goals for speed, side by side with what people would use instead. All
// contenders of a figure take turns in the same run, and a figure is the median over the rounds: a busy machine slows a
// whole round down, not one side of a ratio.
//
// Every figure with a goal is one line that a script can read, "ratio NAME VALUE GOAL" or "allocs NAME VALUE GOAL". All
// other lines start with # or belong to a Markdown table. The exit status is 1 if a goal is missed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"time"
)

// options is what the command line says.
type options struct {
	only     *regexp.Regexp
	rounds   int
	time     time.Duration
	dir      string
	markdown bool
}

// The defaults keep a whole run below two minutes.
const (
	defaultRounds = 7
	defaultTime   = 600 * time.Millisecond
)

func parseOptions(args []string, usage io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(usage)
	only := flags.String("only", "", "run only the measurements whose name matches this `pattern`")
	flags.IntVar(&o.rounds, "rounds", defaultRounds, "how many times all contenders take their turn")
	flags.DurationVar(&o.time, "time", defaultTime, "how long a turn on SQLite lasts")
	flags.StringVar(&o.dir, "dir", "", "the `directory` for the databases, on the file system to measure (default: the system's temporary one)")
	flags.BoolVar(&o.markdown, "markdown", false, "print the tables of docs/performance.md at the end")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.rounds < 1 || o.time <= 0 || flags.NArg() > 0 {
		return o, errors.New("bench: -rounds and -time must be positive, and there are no arguments")
	}
	o.only, err = regexp.Compile(*only)
	return o, err
}

// wants reports whether any of the names is to be measured.
func (o *options) wants(names ...string) bool {
	for _, name := range names {
		if o.only.MatchString(name) {
			return true
		}
	}
	return false
}

// parts are the measurements in the order of the report. Each prints what it finds, and judges only figures that are wanted.
var parts = []func(context.Context, *options, *report) error{measureMemory, measureFingerprint, measureSQLite}

func run(ctx context.Context, args []string, out io.Writer) (status int, err error) {
	o, err := parseOptions(args, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	}
	if err != nil {
		return 2, err
	}
	r := &report{out: out, wants: o.wants}
	r.describeMachine(time.Now())
	for _, measure := range parts {
		if err := measure(ctx, &o, r); err != nil {
			return 2, err
		}
	}
	if o.markdown {
		r.markdown()
	}
	missed := r.missed()
	for _, f := range missed {
		r.note("missed: %s", f)
	}
	if len(missed) > 0 {
		return 1, nil
	}
	return 0, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status, err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(status)
}
