package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
)

// TestSoakGoesOn: a soak that was started again on its directory counts on from where it was, and leaves nothing else
// there.
func TestSoakGoesOn(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it runs chaos four times")
	dir := t.TempDir()
	for start, hours := range []float64{1e-9, 1e9} {
		s := soak{dir: dir, hours: hours, options: options{
			Store: "sqlite", Seed: 3, Time: time.Second, Clients: 4, Every: 200 * time.Millisecond,
			Settle: await.Limit, Brief: true,
			Only: []string{"server-kill", "clock-step", "stray-row", "stray-effect"},
		}}
		var out bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		s.done = func() {
			if start == 1 && s.total.Windows == 3 {
				cancel() // in the middle, as far as the soak is concerned
			}
		}
		err := s.run(ctx, &out)
		cancel()
		if start == 0 && err != nil || start == 1 && (err == nil || !strings.Contains(err.Error(), "go on with")) {
			t.Fatalf("start %d ended with %v:\n%s", start, err, out.String())
		}
	}
	kept, err := os.ReadFile(filepath.Join(dir, "soak.json"))
	if err != nil || !strings.Contains(string(kept), `"windows": 3`) || !strings.Contains(string(kept),
		`"violations": 0`) {
		t.Errorf("it kept %s, %v; want 3 windows without violations", kept, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("it left %v, %v; want soak.json alone", files, err)
	}
}
