package mutant

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMutantsFitTheSource: each edit is found where it says, so that the one who changes the source learns it here, not
// when the mutants are run.
func TestMutantsFitTheSource(t *testing.T) {
	t.Parallel()
	root, err := repositoryRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names, layers := make(map[string]bool), make(map[string]bool)
	for _, m := range All {
		mutated, err := m.mutate(func(file string) (string, error) {
			text, err := os.ReadFile(filepath.Join(root, file))
			return string(text), err
		})
		if err != nil {
			t.Error(err)
		}
		if len(mutated) == 0 || len(m.Breaks) == 0 || m.Store == "" || m.Mistake == "" || names[m.Name] {
			t.Errorf("mutant %q is not complete, or there are two of that name", m.Name)
		}
		names[m.Name], layers[m.Layer] = true, true
	}
	for _, layer := range []string{
		"engine", "fingerprint", "lease", "sweeper", "reaper", "sqlite", "postgres", "redis", "tiered", "mysql", "dynamodb",
		"phase", "reconcile", "webhook", "ledger", "outbox", "inbox", "audit", "limit",
	} {
		if !layers[layer] {
			t.Errorf("no mutant makes a mistake in the layer %s", layer)
		}
	}
	if len(All) < 20 {
		t.Errorf("there are %d mutants, want 20 at least", len(All))
	}
}

// TestEditsAreStrict: an edit that is not found, or found twice, makes no mutant.
func TestEditsAreStrict(t *testing.T) {
	t.Parallel()
	read := func(string) (string, error) { return "one two two", nil }
	for old, want := range map[string]string{"one": "", "two": "2 times", "three": "0 times"} {
		m := Mutant{Name: "m", Edits: []Edit{{"f", old, "x"}}}
		mutated, err := m.mutate(read)
		switch {
		case want == "" && (err != nil || mutated["f"] != "x two two"):
			t.Errorf("replacing %q gives %v, %v", old, mutated, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("replacing %q: %v, want an error that says %q", old, err, want)
		}
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	if chosen, err := Named("no-fence"); err != nil || len(chosen) != 1 || chosen[0].Name != "no-fence" {
		t.Errorf("no-fence is %v, %v", chosen, err)
	}
	if _, err := Named("sloth"); err == nil {
		t.Error("there is a mutant that was not made")
	}
}
