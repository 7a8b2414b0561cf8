package doctest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// moduleRoot is where the module lies, seen from this package.
const moduleRoot = "../.."

// threats are what the threat model has to speak about, each under a heading of its own.
var threats = []string{
	"First-writer race", "Cross-tenant collision", "Parameter mismatch", "Partial failure", "Incomplete coverage", "Fail-open",
	"Worker replay", "Enumeration", "Replay after expiry", "Cached errors", "Expiry race", "Key spraying", "Stale answers",
}

// parts are what has to be said about each of them.
var parts = []string{"**What happens.**", "**Control.**", "**Shown by**", "**Left over.**"}

var (
	heading   = regexp.MustCompile(`(?m)^### \d+\. (.+)\n`)
	testName  = regexp.MustCompile("`([a-z][a-z0-9/]*)\\.(Test[A-Za-z0-9_]*)`")
	looksLike = regexp.MustCompile("`[^`\\s]*\\bTest[A-Za-z0-9_]*`")
	ruleName  = regexp.MustCompile(`\b[HFSEABOLMPD][1-9][0-9]?\b`)
	ruleLine  = regexp.MustCompile("(?m)^- \\*\\*([A-Z][0-9]+)\\*\\* (`[a-z ]+`)?")
)

// model is the threat model, with what it may refer to.
type model struct {
	text string
	// rules are those of the specification, with their status.
	rules map[string]string
	// exists says whether the tests in a directory of the module have one of that name.
	exists func(dir, name string) (bool, error)
}

// check says everything that is wrong with the model.
func (m *model) check() error {
	var wrong []error
	sections := m.sections()
	if len(sections) != len(threats) {
		wrong = append(wrong, fmt.Errorf("there are sections about %d threats, want %d", len(sections), len(threats)))
	}
	for _, threat := range threats {
		wrong = append(wrong, m.checkSection(threat, sections[threat]))
	}
	return errors.Join(append(wrong, m.checkTests(), m.checkRules())...)
}

// sections are the texts under the numbered headings.
func (m *model) sections() map[string]string {
	found := make(map[string]string)
	at := heading.FindAllStringSubmatchIndex(m.text, -1)
	for _, i := range at {
		rest := m.text[i[1]:]
		if end := regexp.MustCompile(`(?m)^##`).FindStringIndex(rest); end != nil {
			rest = rest[:end[0]]
		}
		found[m.text[i[2]:i[3]]] = rest
	}
	return found
}

func (m *model) checkSection(threat, text string) error {
	if text == "" {
		return fmt.Errorf("no section is about the threat %q", threat)
	}
	var wrong []error
	for _, part := range parts {
		if !strings.Contains(text, part) {
			wrong = append(wrong, fmt.Errorf("%s: %s is missing", threat, part))
		}
	}
	_, control, _ := strings.Cut(text, parts[1])
	control, shown, _ := strings.Cut(control, parts[2])
	rules := ruleName.FindAllString(control, -1)
	if len(rules) == 0 {
		wrong = append(wrong, fmt.Errorf("%s: the control names no rule", threat))
	}
	for _, rule := range rules {
		if m.rules[rule] == "`planned`" {
			wrong = append(wrong, fmt.Errorf("%s: rule %s is planned, and no control yet", threat, rule))
		}
	}
	if testName.FindString(shown) == "" {
		wrong = append(wrong, fmt.Errorf("%s: no test shows the control", threat))
	}
	return errors.Join(wrong...)
}

// checkTests looks for each test that the model names, in the package that it names.
func (m *model) checkTests() error {
	var wrong []error
	for _, quoted := range looksLike.FindAllString(m.text, -1) {
		name := testName.FindStringSubmatch(quoted)
		if name == nil {
			wrong = append(wrong, fmt.Errorf("%s does not say in which package it is: write it as `store/sqlite.TestName`", quoted))
			continue
		}
		dir := name[1]
		if dir == "onceward" {
			dir = "."
		}
		ok, err := m.exists(dir, name[2])
		if err == nil && !ok {
			err = fmt.Errorf("%s does not exist: name the test that took its place", quoted)
		}
		wrong = append(wrong, err)
	}
	return errors.Join(wrong...)
}

func (m *model) checkRules() error {
	var wrong []error
	for _, rule := range ruleName.FindAllString(m.text, -1) {
		if _, ok := m.rules[rule]; !ok {
			wrong = append(wrong, fmt.Errorf("the specification has no rule %s", rule))
		}
	}
	return errors.Join(wrong...)
}

// declaredTests finds tests in the source, and reads each directory once.
type declaredTests map[string]map[string]bool

func (d declaredTests) has(dir, name string) (bool, error) {
	if d[dir] == nil {
		names, err := testsIn(filepath.Join(moduleRoot, dir))
		if err != nil {
			return false, err
		}
		d[dir] = names
	}
	return d[dir][name], nil
}

// testsIn returns the names of the tests that the files of a directory declare.
func testsIn(dir string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				names[f.Name.Name] = true
			}
		}
	}
	return names, nil
}

func readDocument(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(moduleRoot, "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func rulesOf(specification string) map[string]string {
	rules := make(map[string]string)
	for _, line := range ruleLine.FindAllStringSubmatch(specification, -1) {
		rules[line[1]] = line[2]
	}
	return rules
}

func TestThreatModelNamesRealTests(t *testing.T) {
	t.Parallel()
	m := &model{text: readDocument(t, "threat-model.md"), rules: rulesOf(readDocument(t, "spec.md")), exists: make(declaredTests).has}
	if len(m.rules) < 50 {
		t.Fatalf("found only %d rules in the specification", len(m.rules))
	}
	if err := m.check(); err != nil {
		t.Errorf("docs/threat-model.md:\n%v", err)
	}
}

// TestVerificationNamesRealTests: each line of the checklist that names a test names one that exists.
func TestVerificationNamesRealTests(t *testing.T) {
	t.Parallel()
	m := &model{text: readDocument(t, "verification.md"), exists: make(declaredTests).has}
	if err := m.checkTests(); err != nil {
		t.Errorf("docs/verification.md:\n%v", err)
	}
}

// TestReliabilityNamesRealTests: what shows an invariant or a scenario exists, and each of them is there.
func TestReliabilityNamesRealTests(t *testing.T) {
	t.Parallel()
	m := &model{text: readDocument(t, "reliability.md"), exists: make(declaredTests).has}
	if err := m.checkTests(); err != nil {
		t.Errorf("docs/reliability.md:\n%v", err)
	}
	for _, row := range append(numbered("I", 1, 17), numbered("", 37, 49)...) {
		if !regexp.MustCompile(`(?m)^\| ` + row + ` \|.*Test`).MatchString(m.text) {
			t.Errorf("docs/reliability.md has no row %s that names a test", row)
		}
	}
}

func numbered(prefix string, from, to int) (names []string) {
	for i := from; i <= to; i++ {
		names = append(names, fmt.Sprint(prefix, i))
	}
	return names
}

// TestThreatModelCheckHasTeeth breaks a model that is in order, in each way that the check is for.
func TestThreatModelCheckHasTeeth(t *testing.T) {
	t.Parallel()
	section := "\n**What happens.** Money is lost.\n\n**Control.** None twice (S1).\n\n**Shown by** `onceward.TestReal`.\n\n**Left over.** Nothing.\n\n"
	var good strings.Builder
	for i, threat := range threats {
		fmt.Fprintf(&good, "### %d. %s\n%s", i+1, threat, section)
	}
	good.WriteString("## The end\n")
	for name, test := range map[string]struct{ old, new, complaint string }{
		"in order":                    {},
		"a test that was renamed":     {"onceward.TestReal", "onceward.TestGone", "TestGone` does not exist"},
		"a test in another package":   {"onceward.TestReal", "store/sqlite.TestReal", "store/sqlite.TestReal` does not exist"},
		"a test without a package":    {"onceward.TestReal", "TestReal", "does not say in which package"},
		"no test":                     {"`onceward.TestReal`", "trust", "no test shows the control"},
		"a threat that is left out":   {"Fail-open", "Fail-safe", `no section is about the threat "Fail-open"`},
		"a threat too many":           {"## The end", "### 14. Boredom\n", "about 14 threats"},
		"nothing said of the rest":    {"**Left over.**", "", "**Left over.** is missing"},
		"a rule that does not exist":  {"(S1)", "(S99)", "no rule S99"},
		"a control that is a plan":    {"(S1)", "(L1)", "rule L1 is planned"},
		"a control without its rules": {"(S1)", "", "names no rule"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &model{
				text:   strings.ReplaceAll(good.String(), test.old, test.new),
				rules:  rulesOf("- **S1** `built` One step.\n- **L1** `planned` Limits.\n"),
				exists: func(dir, name string) (bool, error) { return dir == "." && name == "TestReal", nil },
			}
			if test.old == "" {
				m.text = good.String()
			}
			switch err := m.check(); {
			case test.complaint == "" && err != nil:
				t.Errorf("the check refuses what is in order: %v", err)
			case test.complaint != "" && (err == nil || !strings.Contains(err.Error(), test.complaint)):
				t.Errorf("the check said %v, want %q", err, test.complaint)
			}
		})
	}
}
