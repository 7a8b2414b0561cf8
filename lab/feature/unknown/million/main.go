// Command million compares two generated ledgers of a million entries each, with ten planted differences, and prints
// the findings and the memory that it took. It is a program of its own because the memory of a test is not that of the
// comparison: the race detector alone takes more.
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"iter"
	"log"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store/memory"
)

const entries = 1_000_000

var day = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// side is a ledger that is generated as it is read.
type side struct {
	lacks, differs, repeats map[int]bool
}

// The differences lie at both ends and on both sides of the first recovery point, which is behind 5,000 entries a side.
var (
	provider = side{lacks: set(4_999, 700_000), repeats: set(5_000)}
	local    = side{lacks: set(0, 5_001, 999_998), differs: set(1, 123_456, 500_000), repeats: set(999_999)}
)

func set(numbers ...int) map[int]bool {
	members := make(map[int]bool)
	for _, n := range numbers {
		members[n] = true
	}
	return members
}

// list is the side's [ledger.Source].
func (s *side) list(_ context.Context, _ ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
	return func(yield func(ledger.Entry, error) bool) {
		for i := range entries {
			e := ledger.Entry{Key: fmt.Sprintf("charge %06d", i), Value: "10.00 EUR paid", At: day.Add(12 * time.Hour)}
			if s.lacks[i] || e.Key <= after {
				continue
			}
			if s.differs[i] {
				e.Value = "10.00 EUR refunded"
			}
			if !yield(e, nil) || s.repeats[i] && !yield(e, nil) {
				return
			}
		}
	}
}

func main() {
	dayAfter := func() time.Time { return day.Add(24*time.Hour + ledger.DefaultSettle) }
	comparer, err := ledger.NewComparer(memory.New(memory.WithClock(dayAfter)), ledger.Config{
		Name: "million", Logger: slog.New(slog.DiscardHandler),
		Provider: provider.list, Local: local.list,
		Report: func(_ context.Context, f ledger.Finding) error {
			fmt.Println("finding:", f.Kind, f.Side, f.Key)
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	compared, err := comparer.RunOnce(context.Background())
	if err != nil || len(compared) != 1 {
		log.Fatalf("%d windows were compared: %v", len(compared), err)
	}
	fmt.Printf("read: %d %d\n", compared[0].Provider, compared[0].Local)
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	fmt.Printf("runtime: %d KiB\n", stats.Sys>>10)
	if peak, ok := peakResident(); ok {
		fmt.Printf("resident: %d KiB\n", peak)
	}
}

// peakResident is the most memory that the process ever had, where the system says so. The usage that a parent is told
// is not good for this: a process that was started by vfork counts what its parent had.
func peakResident() (kib int64, ok bool) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	for lines := bufio.NewScanner(bytes.NewReader(status)); lines.Scan(); {
		if n, _ := fmt.Sscanf(lines.Text(), "VmHWM: %d kB", &kib); n == 1 {
			return kib, true
		}
	}
	return 0, false
}
