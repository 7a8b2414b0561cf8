package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The kinds of figure, which are also the first word of their lines.
const (
	kindRatio  = "ratio"
	kindAllocs = "allocs"
)

// goals are what the project has promised. A figure that is not listed here is information.
var goals = mustParseGoals(`
	allocs memory-first <=8
	allocs memory-replay <=8
	ratio fingerprint-vs-valid-sha256 <=2
	ratio sqlite-vs-pool-c64 >=9
	ratio sqlite-vs-single-c64 >=2.5
	ratio sqlite-transactional-c64 >=2.8
	ratio sqlite-replay-c64 >=4
	ratio postgres-transactional-c16 >=0.55
	ratio postgres-transactional-of-bare-c16 >=0.95
	ratio postgres-transactional-c64 >=0.5
	ratio postgres-transactional3-c16 >=0.76
	ratio postgres-http-c16 >=0.58
	ratio postgres-http-c64 >=0.7
	ratio postgres-vs-serializable-c16 >=3.5
	ratio postgres-batch-c64 >=3.2
	ratio postgres-batch-c256 >=5.2
	ratio postgres-reserved-c16 >=0.36
	ratio postgres-replay-c16 >=3.8
	ratio postgres-network-c4 >=0.92
	ratio postgres-network-c4-p50 <=1.05
	ratio postgres-network-c16 >=0.9
	ratio postgres-network-c16-p50 <=1.05
	ratio postgres-network-reserved-c4 >=0.43
	ratio postgres-bytes-per-key <=0.7
	ratio postgres-wal-per-request <=2.4
	ratio postgres-scale-reserve <=1.3
	ratio postgres-scale-replay <=1.5
	ratio postgres-scale-reap <=1.1
	ratio postgres-scale-wal-ordered <=2
	ratio postgres-bloat <=1.3
	ratio outbox-add-in-a-handler <=1.15
	ratio outbox-drain-per-second >=15000
	ratio outbox-drain-four-workers-per-second >=25000
	ratio outbox-four-workers >=1
	ratio outbox-claim-scale <=1.3
	ratio redis-reserve-complete-c64 >=0.45
	ratio redis-replay-c64 >=0.8
	ratio tiered-replay-c64 <=1.3
	ratio tiered-first-c16 >=0.9
	ratio sealed-4k-bytes <=0.34
	ratio sealed-first-c16 >=0.9
	ratio limit-shared-c64 >=0.9
	ratio spray-shared >=0.95
	ratio spray-local >=0.95
	ratio mariadb-transactional-c16 >=0.7
	ratio mariadb-vs-textbook-c16 >=1.5
	ratio dynamodb-requests-first <=2
	ratio dynamodb-requests-replay <=1
	ratio dynamodb-vs-powertools-way >=1
	ratio cli-show-1m <=1.5
	ratio cli-list-1m <=1.5
	ratio telemetry-first-c16 >=0.97
	ratio telemetry-replay-c16 >=0.95
`)

// goal is the bound that a figure has to keep.
type goal struct {
	kind    string
	name    string
	atLeast bool
	bound   float64
}

// parseGoal reads one line "KIND NAME >=BOUND" or "KIND NAME <=BOUND".
func parseGoal(line string) (goal, error) {
	words := strings.Fields(line)
	if len(words) != 3 || words[0] != kindRatio && words[0] != kindAllocs {
		return goal{}, fmt.Errorf("bench: goal %q: want KIND NAME BOUND", line)
	}
	g := goal{kind: words[0], name: words[1]}
	number, atLeast := strings.CutPrefix(words[2], ">=")
	if !atLeast {
		var atMost bool
		if number, atMost = strings.CutPrefix(words[2], "<="); !atMost {
			return goal{}, fmt.Errorf("bench: goal %q: the bound starts with >= or <=", line)
		}
	}
	bound, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(bound) || math.IsInf(bound, 0) {
		return goal{}, fmt.Errorf("bench: goal %q: the bound is not a number", line)
	}
	g.atLeast, g.bound = atLeast, bound
	return g, nil
}

func mustParseGoals(text string) map[string]goal {
	parsed := make(map[string]goal)
	for line := range strings.Lines(strings.TrimSpace(text)) {
		g, err := parseGoal(line)
		if err != nil {
			panic(err)
		}
		parsed[g.name] = g
	}
	return parsed
}

// String returns the bound as it stands in a line of the report.
func (g goal) String() string {
	sign := "<="
	if g.atLeast {
		sign = ">="
	}
	return sign + strconv.FormatFloat(g.bound, 'f', -1, 64)
}

// met judges a value. What is not a number meets no goal.
func (g goal) met(value float64) bool {
	if g.atLeast {
		return value >= g.bound
	}
	return value <= g.bound
}

// figure is a value with its goal.
type figure struct {
	goal
	value float64
}

// newFigure rounds the value to what the report shows, so that no reader sees a figure that contradicts its judgement.
func newFigure(g goal, value float64) figure {
	scale := 100.0
	if g.kind == kindAllocs {
		scale = 10
	}
	return figure{goal: g, value: math.Round(value*scale) / scale}
}

// shown returns the value as text.
func (f figure) shown() string { return strconv.FormatFloat(f.value, 'f', -1, 64) }

// String returns the line that a script reads.
func (f figure) String() string {
	return fmt.Sprintf("%s %s %s %s", f.kind, f.name, f.shown(), f.goal)
}

// report prints figures as they come and remembers them for the end.
type report struct {
	out     io.Writer
	wants   func(names ...string) bool
	machine string
	figures []figure
	tables  []*table
}

// note prints a line for people.
func (r *report) note(format string, args ...any) {
	fmt.Fprintf(r.out, "# "+format+"\n", args...)
}

// judge prints a figure that has a goal, if it is wanted.
func (r *report) judge(name string, value float64) {
	if !r.wants(name) {
		return
	}
	f := newFigure(goals[name], value)
	r.figures = append(r.figures, f)
	fmt.Fprintln(r.out, f)
}

// judgeTurns prints a figure that is the median of turns, with what lies around it.
func (r *report) judgeTurns(name string, ratios []float64) {
	if r.wants(name) {
		r.judge(name, median(ratios))
		r.note("  %s", middleHalf(ratios))
	}
}

// inform prints a figure without a goal, if it is wanted.
func (r *report) inform(name string, value float64) {
	if r.wants(name) {
		r.note("%s: %.2f, without a goal", name, value)
	}
}

// missed returns the figures that do not meet their goal.
func (r *report) missed() (missed []figure) {
	for _, f := range r.figures {
		if !f.met(f.value) {
			missed = append(missed, f)
		}
	}
	return missed
}

// describeMachine says what the figures hold for.
func (r *report) describeMachine(now time.Time) {
	r.machine = fmt.Sprintf("%s, %d CPUs (%s), %s/%s, %s", runtime.Version(), runtime.NumCPU(), cpuModel(),
		runtime.GOOS, runtime.GOARCH, now.UTC().Format(time.DateOnly))
	r.note("%s", r.machine)
}

// cpuModel names the processor where the system tells.
func cpuModel() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown model"
	}
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown model"
}

// markdown prints the tables for the documentation.
func (r *report) markdown() {
	fmt.Fprintf(r.out, "\n%s\n\n", r.machine)
	for _, t := range append([]*table{r.verdicts()}, r.tables...) {
		if len(t.rows) > 0 {
			t.print(r.out)
		}
	}
}

// verdicts is the table of all figures, with a column for each run.
func (r *report) verdicts() *table {
	values, runs := make(map[string][]figure), 0
	var names []string
	for _, f := range r.figures {
		if values[f.name] == nil {
			names = append(names, f.name)
		}
		values[f.name] = append(values[f.name], f)
		runs = max(runs, len(values[f.name]))
	}
	t := &table{head: []string{"figure", "measured", "goal", ""}}
	if runs > 1 {
		t.head = []string{"figure"}
		for run := range runs {
			t.head = append(t.head, fmt.Sprintf("run %d", run+1))
		}
		t.head = append(t.head, "goal", "")
	}
	for _, name := range names {
		t.add(verdictRow(values[name])...)
	}
	return t
}

// verdictRow is a figure in all runs, with how many of them met its goal.
func verdictRow(values []figure) []string {
	row, met := []string{values[0].kind + " " + values[0].name}, 0
	for _, f := range values {
		row = append(row, f.shown())
		if f.met(f.value) {
			met++
		}
	}
	verdict := fmt.Sprintf("met in %d of %d", met, len(values))
	switch met {
	case len(values):
		verdict = "met"
	case 0:
		verdict = "missed"
	}
	return append(row, values[0].goal.String(), verdict)
}

// series holds what each contender reached in each round, by name.
type series map[string][]float64

func (s series) add(name string, value float64) { s[name] = append(s[name], value) }

// median is the typical round of a contender.
func (s series) median(name string) float64 { return median(s[name]) }

// ratio is the median over the rounds of one contender against the best of some rivals in the same round.
func (s series) ratio(name string, rivals ...string) float64 {
	return median(s.ratios(name, rivals...))
}

// ratios are those of the rounds.
func (s series) ratios(name string, rivals ...string) []float64 {
	ratios := make([]float64, len(s[name]))
	for round, value := range s[name] {
		best := 0.0
		for _, rival := range rivals {
			best = max(best, s[rival][round])
		}
		ratios[round] = value / best
	}
	return ratios
}

// median returns the middle value, or the mean of the two in the middle.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare[float64])
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// quantile is the value that this part of the values does not exceed.
func quantile(values []float64, part float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))]
}

// table is a Markdown table: its first column is text, the others are numbers.
type table struct {
	title string
	head  []string
	rows  [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// print writes the table as Markdown.
func (t *table) print(out io.Writer) {
	if t.title != "" {
		fmt.Fprintf(out, "%s\n\n", t.title)
	}
	rule := make([]string, len(t.head))
	for i := range rule {
		rule[i] = "---:"
	}
	rule[0] = "---"
	for _, row := range append([][]string{t.head, rule}, t.rows...) {
		fmt.Fprintf(out, "| %s |\n", strings.Join(row, " | "))
	}
	fmt.Fprintln(out)
}

// keep prints the rows of a table as notes, and keeps it for the documentation.
func (r *report) keep(t *table) {
	r.note("%s", t.title)
	widths := make([]int, len(t.head))
	rows := append([][]string{t.head}, t.rows...)
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		line := fmt.Sprintf("%-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			line += fmt.Sprintf("  %*s", widths[i+1], cell)
		}
		r.note("  %s", line)
	}
	r.tables = append(r.tables, t)
}

// grouped writes a whole number with separators between its thousands.
func grouped(value float64) string {
	digits := strconv.FormatInt(int64(math.Round(value)), 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
