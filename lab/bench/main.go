// Command bench measures Onceward against its goals for speed, side by side with what people would use instead. All
// contenders of a figure take short turns in random order in the same run, and a figure is the median of the ratios of the
// rounds: a busy machine slows a whole round down, not one side of a ratio.
//
// The default suite needs nothing but a disk. The suites postgres, postgres-scale, outbox and telemetry
// need the programs of PostgreSQL, of which they start a private server, or the URL of a server that may be filled. The suites
// stores and operate need those of Redis as well, and the suite engines those of MariaDB and Dynoxide, a server that
// speaks DynamoDB's protocol.
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
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"time"
)

// options is what the command line says.
type options struct {
	suite    string
	only     *regexp.Regexp
	rounds   int
	time     time.Duration
	dir      string
	markdown bool
	postgres string
	keys     int
	seed     uint64
	runs     int
}

// The defaults keep a whole run of the default suite below two minutes, and one of the postgres suite below eight.
const (
	defaultRounds = 7
	defaultTime   = 250 * time.Millisecond
)

func parseOptions(args []string, usage io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&o.suite, "suite", suiteDefault, "the `suite` to run: "+suiteNames)
	only := flags.String("only", "", "run only the measurements whose name matches this `pattern`")
	flags.IntVar(&o.rounds, "rounds", defaultRounds, fmt.Sprintf(
		"how many rounds there are: in one, the contenders of a contest take %d turns in random order", turnsARound))
	flags.DurationVar(&o.time, "time", defaultTime, "how long a turn on a database lasts")
	flags.StringVar(&o.dir, "dir", "",
		"the `directory` for the databases, on the file system to measure (default: the system's temporary one)")
	flags.StringVar(&o.postgres, "postgres", "",
		"the `URL` of a PostgreSQL server to use and to fill (default: a private one)")
	flags.IntVar(&o.keys, "keys", 0,
		"how many keys a table holds whose size or speed is measured (default: 1000000, for postgres-scale 10000000)")
	flags.IntVar(&o.runs, "runs", 1, "how many times the whole suite runs; a table then has the figures of all")
	flags.Uint64Var(&o.seed, "seed", rand.Uint64(), "the `number` that the order of turns follows from")
	flags.BoolVar(&o.markdown, "markdown", false, "print the tables of docs/performance.md at the end")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.rounds < 1 || o.runs < 1 || o.time <= 0 || o.keys < 0 || flags.NArg() > 0 {
		return o, errors.New("bench: -rounds, -runs, -time and -keys must be positive, and there are no arguments")
	}
	if suites[o.suite] == nil {
		return o, fmt.Errorf("bench: there is no suite %q: use %s", o.suite, suiteNames)
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

// part is a measurement. It prints what it finds, and judges only figures that are wanted.
type part func(context.Context, *options, *report) error

// suiteDefault is the suite that runs if none is named.
const suiteDefault = "default"

// suiteNames lists them for people.
const suiteNames = "default, postgres, postgres-scale, outbox, stores, engines, operate or telemetry"

// suites are the measurements, each in the order of the report.
var suites = map[string][]part{
	suiteDefault:     {measureMemory, measureFingerprint, measureSQLite},
	"postgres":       {measurePostgres},
	"postgres-scale": {measureScale, measureBloat},
	"outbox":         {measureOutbox},
	"stores":         {measureStores, measureSpray, measureSealed},
	"engines":        {measureEngines, measureCosts},
	"operate":        {measureOperate},
	"telemetry":      {measureTelemetry},
}

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
	for number := range o.runs {
		r.note("run %d of %d, in the order of turns of -seed %d", number+1, o.runs, o.seed)
		for _, measure := range suites[o.suite] {
			if err := measure(ctx, &o, r); err != nil {
				return 2, err
			}
		}
		o.seed++
	}
	switch {
	case o.markdown:
		r.markdown()
	case o.runs > 1:
		r.verdicts().print(out)
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
	var status int
	var err error
	if settings := os.Getenv(drainVariable); settings != "" {
		err = workOnce(ctx, settings, os.Stdin, os.Stdout)
	} else {
		status, err = run(ctx, os.Args[1:], os.Stdout)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	os.Exit(status)
}
