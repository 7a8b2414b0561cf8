package postgres

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

var update = flag.Bool("update", false, "write the golden files of testdata/rows anew")

// goldenRows are one record for each thing that a row of version 1 can hold. They are never changed, only added to: the
// files beside them were written by every release so far.
var goldenRows = map[string]store.Record{
	"in-progress": {
		State: store.StateInProgress, Fingerprint: goldenFingerprint(0), Attempt: 1, Nonce: store.Nonce{1, 2, 3, 15: 16},
		Retention: 24 * time.Hour, LeaseUntil: goldenTime(30 * time.Second), CreatedAt: goldenTime(0),
		TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
	},
	"resumable": {
		State: store.StateInProgress, OnLost: store.LostResume, Fingerprint: goldenFingerprint(7), Attempt: 3,
		Nonce: store.Nonce{15: 1}, Retention: 30 * 24 * time.Hour, Point: "charged", Data: []byte("\x00carried"),
		NotReplayable: true, LeaseUntil: goldenTime(time.Minute), CreatedAt: goldenTime(0), TraceID: "not hexadecimal",
	},
	"completed": {
		State: store.StateCompleted, Fingerprint: goldenFingerprint(0), Attempt: 2, Retention: 24 * time.Hour, ProviderID: "ch_1",
		CreatedAt: goldenTime(0), SettledAt: goldenTime(time.Second), ExpiresAt: goldenTime(24*time.Hour + time.Second),
		Response: store.Response{Status: 201, Body: []byte(`{"id":1}`), Header: []store.HeaderField{
			{Name: "Content-Type", Value: "application/json"},
			{Name: "Location", Value: "/payments/1"},
			{Name: "Vary", Value: "Accept", Append: true},
			{Name: "X-Own", Value: "y", Append: true},
			{Name: "X-Empty"},
		}},
	},
	"completed-by-transaction": {
		State: store.StateCompleted, Fingerprint: goldenFingerprint(0), Attempt: 2, Retention: 1500 * time.Millisecond,
		CreatedAt: goldenTime(0), SettledAt: goldenTime(0), ExpiresAt: goldenTime(1500 * time.Millisecond),
		Response: store.Response{Status: 204},
	},
	"removed-header": {
		State: store.StateCompleted, Fingerprint: goldenFingerprint(0), Attempt: 2, Retention: 24 * time.Hour,
		CreatedAt: goldenTime(0), SettledAt: goldenTime(time.Second), ExpiresAt: goldenTime(24*time.Hour + time.Second),
		Response: store.Response{
			Status: 200, Header: []store.HeaderField{{Name: "Server", Removed: true}, {Name: "Vary", Value: "Accept"}},
		},
	},
	"not-stored": {
		State: store.StateCompleted, OnLost: store.LostResume, Fingerprint: goldenFingerprint(0), Attempt: 2, Retention: time.Hour,
		CreatedAt: goldenTime(0), SettledAt: goldenTime(time.Second), ExpiresAt: goldenTime(time.Hour + time.Second),
		Response: store.Response{Status: 200, NotStored: true}, NotReplayable: true,
	},
	"retryable": {
		State: store.StateRetryable, Fingerprint: goldenFingerprint(0), Attempt: 1, Retention: 24 * time.Hour, LastError: "not executed",
		CreatedAt: goldenTime(0), SettledAt: goldenTime(time.Second), ExpiresAt: goldenTime(24*time.Hour + time.Second),
	},
	"unknown": {
		State: store.StateUnknown, Fingerprint: goldenFingerprint(0), Attempt: 1, Retention: 24 * time.Hour,
		LastError: "lease ran out", ReconcileAt: goldenTime(time.Hour), CreatedAt: goldenTime(0),
	},
	"unknown-since": {
		State: store.StateUnknown, Fingerprint: goldenFingerprint(0), Attempt: 1, Retention: 24 * time.Hour,
		LastError: "lease ran out", ReconcileAt: goldenTime(time.Hour), CreatedAt: goldenTime(0), SettledAt: goldenTime(time.Minute),
	},
	"dead-letter": {
		State: store.StateUnknown, Fingerprint: goldenFingerprint(0), Attempt: 1, Retention: 24 * time.Hour, ReconcileCount: 300,
		LastError: "the provider is silent", ReconcileAt: goldenTime(time.Hour), DeadLetter: true, CreatedAt: goldenTime(0),
	},
	"expired": {
		State: store.StateExpired, Fingerprint: goldenFingerprint(0), Attempt: 9, Retention: 24 * time.Hour,
		CreatedAt: goldenTime(0), SettledAt: goldenTime(time.Second), ExpiresAt: goldenTime(48 * time.Hour),
	},
}

func init() {
	for name, rec := range goldenRows {
		rec.Version, rec.Operation, rec.ID = 1, "POST /payments", store.ID{Scope: "alice", Key: "key " + name}
		goldenRows[name] = rec
	}
	packed := goldenRows["retryable"]
	packed.Key = "0f8fad5b-d9cb-469f-a165-70867728950e"
	goldenRows["uuid"] = packed
}

func goldenTime(d time.Duration) time.Time {
	return time.Date(2026, 1, 1, 12, 0, 0, 123_456_000, time.UTC).Add(d)
}

func goldenFingerprint(session byte) store.Fingerprint {
	f := store.Fingerprint{Secret: 1 << 31, Rules: 1, Session: [16]byte{session}}
	for i := range f.Sum {
		f.Sum[i] = byte(i * 7)
	}
	return f
}

// print is a row as the golden files hold it.
func (r *row) print() []byte {
	return fmt.Appendf(nil, "attempt %d\ndue %d\nretention %d\nqueue %d\nanswer %x\nrequest %x\nmore %x\n",
		r.attempt, r.due, r.retention, r.queue, r.answer, r.request, r.more)
}

// parseGolden is the inverse of print.
func parseGolden(t *testing.T, text []byte) (r row) {
	t.Helper()
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		n, _ := strconv.ParseInt(value, 10, 64)
		b, _ := hex.DecodeString(value)
		switch name {
		case "attempt":
			r.attempt = n
		case "due":
			r.due = n
		case "retention":
			r.retention = int32(n)
		case "queue":
			r.queue = int16(n)
		case "answer":
			r.answer = b
		case "request":
			r.request = b
		case "more":
			r.more = b
		default:
			t.Fatalf("a golden file with %q", name)
		}
	}
	return r
}

// TestGoldenRows holds version 1 to staying readable (S8), and to being written as it always was.
func TestGoldenRows(t *testing.T) {
	t.Parallel()
	for name, rec := range goldenRows {
		file := filepath.Join("testdata", "rows", "v1-"+name+".txt")
		var r row
		r.encode(&rec, [16]byte{}, operationNumber)
		if *update {
			if err := os.WriteFile(file, r.print(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		golden, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(golden, r.print()) {
			t.Errorf("S8: %s is written as\n%s, want\n%s", name, r.print(), golden)
		}
		stored := parseGolden(t, golden)
		if got, err := stored.record(rec.ID, named(rec.Operation)); err != nil || !reflect.DeepEqual(got, rec) {
			t.Errorf("S8: %s reads\n%+v (%v), want\n%+v", name, got, err, rec)
		}
	}
}

// TestGoldenLists: what stands for a header field is stored, so the lists only grow at their ends.
func TestGoldenLists(t *testing.T) {
	t.Parallel()
	if len(commonNames) < 16 || commonNames[0] != "Content-Type" || commonNames[15] != "X-Content-Type-Options" {
		t.Errorf("S8: the common names have moved: %q", commonNames)
	}
	if len(commonFields) < 14 || commonFields[0].Value != "application/json" || commonFields[13].Value != "nosniff" {
		t.Errorf("S8: the common fields have moved: %v", commonFields)
	}
	if len(commonNames) > codeRemoved-firstName || len(commonFields) > 128-firstField {
		t.Error("the lists do not fit into their codes")
	}
}
