package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseGoal(t *testing.T) {
	tests := []struct {
		line string
		want goal
		ok   bool
	}{
		{"ratio sqlite-vs-pool-c64 >=6", goal{kindRatio, "sqlite-vs-pool-c64", true, 6}, true},
		{"\tratio a >=2.5\n", goal{kindRatio, "a", true, 2.5}, true},
		{"allocs memory-first <=12", goal{kindAllocs, "memory-first", false, 12}, true},
		{line: ""},
		{line: "ratio a"},
		{line: "speed a >=1"},
		{line: "ratio a 6"},
		{line: "ratio a >6"},
		{line: "ratio a >="},
		{line: "ratio a >=six"},
		{line: "ratio a >=NaN"},
		{line: "ratio a <=Inf"},
		{line: "ratio a >=6 more"},
	}
	for _, test := range tests {
		got, err := parseGoal(test.line)
		if (err == nil) != test.ok || got != test.want {
			t.Errorf("parseGoal(%q) = %+v, %v; want %+v, ok: %t", test.line, got, err, test.want, test.ok)
		}
	}
}

// TestPromisedGoals holds the goals to what the project has promised: none is lowered unseen.
func TestPromisedGoals(t *testing.T) {
	promised := map[string]string{
		"memory-first": "<=8", "memory-replay": "<=8", "fingerprint-vs-valid-sha256": "<=2", "sqlite-vs-pool-c64": ">=9",
		"sqlite-vs-single-c64": ">=2.5", "sqlite-transactional-c64": ">=2.8", "sqlite-replay-c64": ">=4",
		"postgres-transactional-c16":         ">=0.55",
		"postgres-transactional-of-bare-c16": ">=0.95", "postgres-transactional-c64": ">=0.5", "postgres-transactional3-c16": ">=0.76",
		"postgres-http-c16": ">=0.58", "postgres-http-c64": ">=0.7", "postgres-vs-serializable-c16": ">=3.5",
		"postgres-batch-c64": ">=3.2", "postgres-batch-c256": ">=5.2", "postgres-reserved-c16": ">=0.36",
		"postgres-replay-c16":          ">=3.8",
		"postgres-network-c4":          ">=0.92",
		"postgres-network-c4-p50":      "<=1.05",
		"postgres-network-c16":         ">=0.9",
		"postgres-network-c16-p50":     "<=1.05",
		"postgres-network-reserved-c4": ">=0.43", "postgres-bytes-per-key": "<=0.7",
		"postgres-wal-per-request": "<=2.4",
		"postgres-scale-reserve":   "<=1.3", "postgres-scale-replay": "<=1.5", "postgres-scale-reap": "<=1.1",
		"postgres-scale-wal-ordered": "<=2",
		"postgres-bloat":             "<=1.3",
		"outbox-add-in-a-handler":    "<=1.15", "outbox-drain-per-second": ">=15000",
		"outbox-drain-four-workers-per-second": ">=25000", "outbox-four-workers": ">=1", "outbox-claim-scale": "<=1.3",
		"redis-reserve-complete-c64": ">=0.45", "redis-replay-c64": ">=0.8", "tiered-replay-c64": "<=1.3", "tiered-first-c16": ">=0.9",
		"sealed-4k-bytes": "<=0.34", "sealed-first-c16": ">=0.9", "limit-shared-c64": ">=0.9",
		"spray-shared": ">=0.95", "spray-local": ">=0.95",
		"mariadb-transactional-c16": ">=0.7", "mariadb-vs-textbook-c16": ">=1.5", "dynamodb-requests-first": "<=2",
		"dynamodb-requests-replay": "<=1", "dynamodb-vs-powertools-way": ">=1",
		"cli-show-1m": "<=1.5", "cli-list-1m": "<=1.5",
		"telemetry-first-c16": ">=0.97", "telemetry-replay-c16": ">=0.95",
	}
	if len(goals) != len(promised) {
		t.Errorf("there are %d goals, want %d", len(goals), len(promised))
	}
	for name, bound := range promised {
		if got := goals[name].String(); got != bound {
			t.Errorf("the goal of %s is %s, want %s", name, got, bound)
		}
	}
}

func TestFigure(t *testing.T) {
	tests := []struct {
		goal  string
		value float64
		line  string
		met   bool
	}{
		{"ratio a >=6", 7.9, "ratio a 7.9 >=6", true},
		{"ratio a >=6", 5.996, "ratio a 6 >=6", true},
		{"ratio a >=6", 5.99, "ratio a 5.99 >=6", false},
		{"ratio a <=2", 2, "ratio a 2 <=2", true},
		{"ratio a <=2", 2.011, "ratio a 2.01 <=2", false},
		{"allocs a <=12", 12.04, "allocs a 12 <=12", true},
		{"allocs a <=12", 12.06, "allocs a 12.1 <=12", false},
		{"ratio a >=1", math.NaN(), "ratio a NaN >=1", false},
		{"ratio a <=1", math.NaN(), "ratio a NaN <=1", false},
	}
	for _, test := range tests {
		g, err := parseGoal(test.goal)
		if err != nil {
			t.Fatal(err)
		}
		f := newFigure(g, test.value)
		if f.String() != test.line || f.met(f.value) != test.met {
			t.Errorf("%v against %q is %q, met: %t; want %q, met: %t", test.value, test.goal, f, f.met(f.value), test.line, test.met)
		}
	}
}

// TestReport checks what a script relies on: figures alone on their lines, everything else marked.
func TestReport(t *testing.T) {
	var out strings.Builder
	r := &report{out: &out, wants: func(names ...string) bool { return names[0] != "memory-replay" }}
	r.describeMachine(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	r.judge("memory-first", 13)
	r.judge("memory-replay", 3)
	r.judge("sqlite-replay-c64", 5.25)
	table := &table{title: "Some", head: []string{"way", "ns"}}
	table.add("this", grouped(1234567.4))
	r.keep(table)
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "# ") && line != "allocs memory-first 13 <=8\n" && line != "ratio sqlite-replay-c64 5.25 >=4\n" {
			t.Errorf("unexpected line %q", line)
		}
	}
	if missed := r.missed(); len(missed) != 1 || missed[0].name != "memory-first" {
		t.Errorf("missed %v", missed)
	}
	out.Reset()
	r.markdown()
	for _, want := range []string{
		"2026-01-02", "| allocs memory-first | 13 | <=8 | missed |", "| ratio sqlite-replay-c64 | 5.25 | >=4 | met |",
		"| way | ns |\n| --- | ---: |\n| this | 1,234,567 |\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the tables lack %q:\n%s", want, out.String())
		}
	}
}

// TestRuns puts the figures of several runs side by side.
func TestRuns(t *testing.T) {
	r := &report{out: &strings.Builder{}, wants: func(...string) bool { return true }}
	for _, value := range []float64{4.5, 3.5, 5} {
		r.judge("sqlite-replay-c64", value)
		r.judge("memory-first", value)
		r.judge("memory-replay", 2*value)
	}
	var out strings.Builder
	r.verdicts().print(&out)
	want := `| figure | run 1 | run 2 | run 3 | goal |  |
| --- | ---: | ---: | ---: | ---: | ---: |
| ratio sqlite-replay-c64 | 4.5 | 3.5 | 5 | >=4 | met in 2 of 3 |
| allocs memory-first | 4.5 | 3.5 | 5 | <=8 | met |
| allocs memory-replay | 9 | 7 | 10 | <=8 | met in 1 of 3 |
`
	if got := strings.TrimRight(out.String(), "\n") + "\n"; got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
}

// TestTurns checks what a figure of a contest says: the median of the turns' ratios, with its quartiles and processor
// time.
func TestTurns(t *testing.T) {
	res := &result{
		rates:  series{"us": {10, 90, 40, 20}, "them": {20, 90, 50, 80}},
		halves: series{"us": {3, 1, 2, 3}, "them": {2, 1, 1, 2}},
		here:   series{"us": {70, 71, 72, 73}, "them": {50, 50, 50, 50}},
		server: series{"us": {100, 100, 120, 120}, "them": {80, 80, 80, 80}},
	}
	for _, test := range []struct {
		f    comparison
		want string
	}{
		{
			comparison{name: "postgres-http-c16", way: "us", rival: "them"},
			"ratio postgres-http-c16 0.65 >=0.58\n#   0.50 to 1.00 in the middle half of 4 turns; " +
				"µs of processor time here 72 against 50, in the server 110 against 80\n",
		},
		{
			comparison{name: "outbox-add", way: "us", rival: "them", times: true},
			"# outbox-add: 1.62, without a goal\n#   1.25 to 4.00 in the middle half of 4 turns; " +
				"µs of processor time here 72 against 50, in the server 110 against 80\n",
		},
		{
			comparison{name: "postgres-network-c4-p50", way: "us", rival: "them", half: true},
			"ratio postgres-network-c4-p50 1.5 <=1.05\n#   1.50 to 2.00 in the middle half of 4 turns; 2.50 ms against 1.50\n",
		},
	} {
		var out strings.Builder
		test.f.tell(&report{out: &out, wants: func(...string) bool { return true }}, res)
		if out.String() != test.want {
			t.Errorf("%s is told as\n%s\nwant\n%s", test.f.name, out.String(), test.want)
		}
	}
}

// TestRepeat counts operations and takes the middle of their times.
func TestRepeat(t *testing.T) {
	const pause = 5 * time.Millisecond
	got, err := repeat(2, 100*time.Millisecond, func(context.Context) error {
		time.Sleep(pause)
		return nil
	})
	if err != nil || got.done < 2 || got.rate <= 0 || got.half < pause {
		t.Errorf("repeat came to %+v, %v", got, err)
	}
	failure := errors.New("broken")
	if _, err := repeat(2, time.Hour, func(context.Context) error { return failure }); !errors.Is(err, failure) {
		t.Errorf("a failing operation ended with %v", err)
	}
}

func TestSeries(t *testing.T) {
	s := series{"us": {10, 40, 30}, "them": {5, 10, 15}, "others": {2, 20, 1}}
	if got := s.ratio("us", "them", "others"); got != 2 {
		t.Errorf("the ratio against the best of each round is %v, want 2", got)
	}
	if got := s.median("us"); got != 30 {
		t.Errorf("the median is %v, want 30", got)
	}
	if got := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("the median of four is %v, want 2.5", got)
	}
	if got := median(nil); got != 0 {
		t.Errorf("the median of nothing is %v, want 0", got)
	}
}

func TestOptions(t *testing.T) {
	for _, args := range [][]string{
		{"-rounds", "0"}, {"-time", "0s"}, {"-runs", "0"}, {"-only", "("}, {"-keys", "-1"}, {"-suite", "none"}, {"surplus"}, {"-unknown"},
	} {
		if _, err := parseOptions(args, &strings.Builder{}); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	o, err := parseOptions([]string{"-only", "^memory"}, &strings.Builder{})
	if err != nil {
		t.Fatal(err)
	}
	if !o.wants("sqlite-c1", "memory-first") || o.wants("sqlite-c1") {
		t.Error("-only does not choose by name")
	}
}

// TestPayload keeps the sizes that the figures are stated for.
func TestPayload(t *testing.T) {
	if n := len(order); n < 900 || n > 1100 {
		t.Errorf("the request has %d bytes, want 1 KiB", n)
	}
	if n := len(answer); n < 190 || n > 210 {
		t.Errorf("the answer has %d bytes, want 200", n)
	}
	for _, page := range [][]byte{listAnswer(), leanAnswer()} {
		if n := len(page); n < listSize*9/10 || n > listSize || !json.Valid(page) {
			t.Errorf("the page has %d bytes, want 4 KiB of JSON: %s", n, page)
		}
	}
	if key := newKey(); len(key) != 36 || key == newKey() {
		t.Errorf("%q is not a new UUID", key)
	}
}
