package store_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward/store"
)

var update = flag.Bool("update", false, "write the golden files of testdata/records again")

// goldenRecords are one record for each thing that version 1 can hold. They are never changed, only added to: the files
// beside them were written by every release so far.
var goldenRecords = map[string]store.Record{
	"in-progress": {
		Version: 1, State: store.StateInProgress, Operation: "POST /payments", Fingerprint: goldenFingerprint(0),
		Attempt: 1_767_268_800_000_000, Nonce: store.Nonce{1, 2, 3, 15: 16}, Retention: 24 * time.Hour,
		LeaseUntil: goldenTime(30 * time.Second), CreatedAt: goldenTime(0), TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
	},
	"resumable": {
		Version: 1, State: store.StateInProgress, OnLost: store.LostResume, Operation: "POST /orders",
		Fingerprint: goldenFingerprint(7), Attempt: 3, Retention: 30 * 24 * time.Hour, Point: "charged",
		Data:          []byte("\x00carried"),
		NotReplayable: true, LeaseUntil: goldenTime(time.Minute), CreatedAt: goldenTime(0),
	},
	"completed": {
		Version: 1, State: store.StateCompleted, Operation: "POST /payments", Fingerprint: goldenFingerprint(0),
		Attempt:   2,
		Retention: 24 * time.Hour, ProviderID: "ch_1", CreatedAt: goldenTime(0), SettledAt: goldenTime(time.Second),
		ExpiresAt: goldenTime(24*time.Hour + time.Second),
		Response: store.Response{
			Status: 201, Body: []byte(`{"id":1}`),
			Header: []store.HeaderField{
				{Name: "Location", Value: "/payments/1"},
				{Name: "Vary", Value: "Accept", Append: true},
			},
		},
	},
	"removed-header": {
		Version: 1, State: store.StateCompleted, Fingerprint: goldenFingerprint(0), Attempt: 2,
		Retention: 24 * time.Hour,
		CreatedAt: goldenTime(0), SettledAt: goldenTime(1), ExpiresAt: goldenTime(24 * time.Hour),
		Response: store.Response{
			Status: 200, Header: []store.HeaderField{{Name: "Server", Removed: true}, {Name: "Vary", Value: "Accept"}},
		},
	},
	"not-stored": {
		Version: 1, State: store.StateCompleted, Fingerprint: goldenFingerprint(0), Attempt: 2,
		Retention: 24 * time.Hour,
		CreatedAt: goldenTime(0), SettledAt: goldenTime(1), ExpiresAt: goldenTime(24 * time.Hour),
		Response: store.Response{Status: 200, NotStored: true},
	},
	"retryable": {
		Version: 1, State: store.StateRetryable, Fingerprint: goldenFingerprint(0), Attempt: 1,
		Retention: 24 * time.Hour,
		LastError: "not executed", CreatedAt: goldenTime(0), SettledAt: goldenTime(1),
		ExpiresAt: goldenTime(24 * time.Hour),
	},
	"dead-letter": {
		Version: 1, State: store.StateUnknown, Fingerprint: goldenFingerprint(0), Attempt: 1, Retention: 24 * time.Hour,
		LastError: "the provider is silent", ReconcileAt: goldenTime(time.Hour), ReconcileCount: 300, DeadLetter: true,
		CreatedAt: goldenTime(0),
	},
	"expired": {
		Version: 1, State: store.StateExpired, Fingerprint: goldenFingerprint(0), Attempt: 9, Retention: 24 * time.Hour,
		CreatedAt: goldenTime(0), SettledAt: goldenTime(1), ExpiresAt: goldenTime(48 * time.Hour),
	},
	"first-error": {
		Version: 1, State: store.StateRetryable, Fingerprint: goldenFingerprint(0), Attempt: 2, Retention: 24 * time.Hour,
		FirstError: "out of stock", LastError: "not executed", CreatedAt: goldenTime(0), SettledAt: goldenTime(1),
		ExpiresAt: goldenTime(24 * time.Hour),
	},
	"rejected": {
		Version: 1, State: store.StateExpired, Fingerprint: goldenFingerprint(0), Attempt: 9, Retention: 24 * time.Hour,
		LastError: "rejected", CreatedAt: goldenTime(0), SettledAt: goldenTime(1), ExpiresAt: goldenTime(24 * time.Hour),
	},
}

func goldenTime(d time.Duration) time.Time {
	return time.Date(2026, 1, 1, 12, 0, 0, 123_456_000, time.UTC).Add(d.Truncate(time.Microsecond))
}

func goldenFingerprint(session byte) store.Fingerprint {
	f := store.Fingerprint{Secret: 1 << 31, Rules: 1, Session: [16]byte{session}}
	for i := range f.Sum {
		f.Sum[i] = byte(i * 7)
	}
	return f
}

// TestGoldenRecords holds version 1 to staying readable (S8), and to being written as it always was.
func TestGoldenRecords(t *testing.T) {
	t.Parallel()
	for name, rec := range goldenRecords {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec.ID = stepID
			path := filepath.Join("testdata", "records", "v1-"+name+".hex")
			encoded := rec.AppendBinary(nil)
			if *update {
				writeGolden(t, path, encoded)
			}
			stored := readGolden(t, path)
			got, err := store.DecodeRecord(stepID, stored)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, rec) {
				t.Errorf("read %+v\nwant %+v", got, rec)
			}
			if !bytes.Equal(encoded, stored) {
				t.Errorf("written %x\nwant %x", encoded, stored)
			}
		})
	}
}

// writeGolden writes lines of 32 bytes, so that a difference can be seen.
func writeGolden(t *testing.T, path string, encoded []byte) {
	t.Helper()
	var text strings.Builder
	for line := range slices.Chunk(encoded, 32) {
		text.WriteString(hex.EncodeToString(line) + "\n")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readGolden(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// TestEveryGoldenFileIsRead finds files whose record was taken out of the list.
func TestEveryGoldenFileIsRead(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join("testdata", "records", "*"))
	if err != nil || len(paths) < len(goldenRecords) {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	for _, path := range paths {
		if _, err := store.DecodeRecord(stepID, readGolden(t, path)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestRecordRoundTrip: what is stored is what is read, down to the microsecond.
func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rec := drawRecord(t)
		prefix := []byte("kept")
		encoded := rec.AppendBinary(prefix)
		if !bytes.HasPrefix(encoded, prefix) {
			t.Fatalf("AppendBinary wrote over what was there")
		}
		got, err := store.DecodeRecord(rec.ID, encoded[len(prefix):])
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, rec) {
			t.Fatalf("read %+v\nwant %+v", got, rec)
		}
	})
}

func TestRecordSharesNoMemory(t *testing.T) {
	t.Parallel()
	rec := goldenRecords["completed"]
	rec.Data = []byte("carried")
	encoded := rec.AppendBinary(nil)
	got, err := store.DecodeRecord(rec.ID, encoded)
	if err != nil {
		t.Fatal(err)
	}
	clear(encoded)
	if !reflect.DeepEqual(got, rec) {
		t.Errorf("the record changed with the bytes it was read from: %+v", got)
	}
}

// TestTimesAreStoredToTheMicrosecond: what is finer is cut off, as in [onceward.Step].
func TestTimesAreStoredToTheMicrosecond(t *testing.T) {
	t.Parallel()
	rec := goldenRecords["in-progress"]
	rec.LeaseUntil = rec.LeaseUntil.Add(999 * time.Nanosecond).In(time.FixedZone("elsewhere", 3600))
	got, err := store.DecodeRecord(rec.ID, rec.AppendBinary(nil))
	if err != nil {
		t.Fatal(err)
	}
	if want := goldenRecords["in-progress"].LeaseUntil; got.LeaseUntil != want {
		t.Errorf("%s, want %s", got.LeaseUntil, want)
	}
}

func requireUnreadable(t testing.TB, version uint8, err error) {
	t.Helper()
	var unreadable *store.UnreadableError
	if !errors.Is(err, store.ErrUnreadable) || !errors.As(err, &unreadable) || unreadable.Version != version {
		t.Errorf("error %v, want an UnreadableError of version %d", err, version)
	}
}
