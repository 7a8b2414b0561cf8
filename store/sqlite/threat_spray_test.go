package sqlite_test

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward"
)

// TestReplaysWriteNothing: who sprays one key gets its answer, and fills no disk: file and log stay as large as the payment made
// them (scenario 33).
func TestReplaysWriteNothing(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]onceward.Option{
		"transactional": onceward.Transactional(), "reserved": onceward.Reserved(onceward.FailureUnknown),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			store := openBusiness(t, path)
			handler := &counted{then: func(w http.ResponseWriter, _ *http.Request, _ int64) { w.WriteHeader(http.StatusCreated) }}
			route := newGuard(t, store).Handler(handler, mode)
			post(route, "key").want(t, http.StatusCreated, false, "section 6")
			before := bytesOnDisk(t, path)
			const replays, clients = 5000, 8
			var sent atomic.Int64
			var all sync.WaitGroup
			for range clients {
				all.Go(func() {
					for sent.Add(1) <= replays {
						post(route, "key").want(t, http.StatusCreated, true, "scenario 33")
					}
				})
			}
			all.Wait()
			handler.wantRuns(t, 1, "scenario 33")
			if after := bytesOnDisk(t, path); after != before {
				t.Errorf("scenario 33: %d replays let the files grow from %d to %d bytes", replays, before, after)
			}
		})
	}
}

// bytesOnDisk is the size of a database with its log.
func bytesOnDisk(t *testing.T, path string) (size int64) {
	t.Helper()
	for _, file := range []string{path, path + "-wal"} {
		info, err := os.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	return size
}
