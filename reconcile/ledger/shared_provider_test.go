package ledger_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// TestASharedAccountIsNoticed: effects that are not in the local ledger may be another service's. A guard without a
// namespace logs this once; effects missing at the provider are no such sign.
func TestASharedAccountIsNoticed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		namespace, provider, local string
		warnings                   int
	}{
		"effects of others":        {"", "a=1 b=2", "a=1", 1},
		"with a namespace":         {"payments", "a=1 b=2", "a=1", 0},
		"effects that are missing": {"", "a=1", "a=1 b=2", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				guard, err := onceward.New(memory.New(), onceward.Config{
					Secret: []byte("the secret of both"), Namespace: test.namespace,
					Logger: slog.New(slog.NewTextHandler(&log, nil)),
				})
				if err != nil {
					t.Fatal(err)
				}
				for _, comparison := range []string{"charges", "refunds"} {
					config := config(newStore(), test.provider, test.local, new(report))
					config.Name, config.Guard = comparison, guard
					if _, err := run(t, config); err != nil {
						t.Fatal(err)
					}
				}
				if n := strings.Count(log.String(), "Config.Namespace is empty"); n != test.warnings {
					t.Errorf("B6: %d warnings, want %d: %s", n, test.warnings, log.String())
				}
			})
		})
	}
}
