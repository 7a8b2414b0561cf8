package onceward_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

func TestTheHashOfAnID(t *testing.T) {
	t.Parallel()
	const known = "38402d67e257ad6f"
	id := onceward.ID{Scope: "alice", Key: "order-1234"}
	if got := id.Hash(); got != known {
		t.Errorf("M3: the hash is %q, want %q for good: logs of other versions are searched for it", got, known)
	}
	seen := make(map[string]onceward.ID)
	for _, id := range distinctIDs {
		hash := id.Hash()
		if !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(hash) {
			t.Errorf("M3: the hash %q is not sixteen hexadecimal digits", hash)
		}
		if other, taken := seen[hash]; taken {
			t.Errorf("M3: %q and %q have the same hash", id, other)
		}
		seen[hash] = id
	}
}

func TestTheLogNamesAnUnknownOutcomeByItsHash(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }}
	guard := newGuard(t, memory.New(), func(c *onceward.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	post(guard.Handler(handler, onceward.Reserved(onceward.FailureUnknown)), "private-key", `{}`)
	if !strings.Contains(log.String(), "outcome unknown") || !strings.Contains(log.String(), aliceID("private-key").Hash()) {
		t.Errorf("M3: the log does not say which outcome is unknown: %s", log.String())
	}
	if strings.Contains(log.String(), "private-key") {
		t.Errorf("M3: the log tells the key: %s", log.String())
	}
}
