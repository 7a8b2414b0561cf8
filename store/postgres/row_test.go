package postgres

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/onceward/onceward/store"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite the golden files of testdata/rows")

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
	"first-error": {
		State: store.StateRetryable, Fingerprint: goldenFingerprint(0), Attempt: 2, Retention: 24 * time.Hour,
		FirstError: "out of stock", LastError: "not executed", CreatedAt: goldenTime(0), SettledAt: goldenTime(time.Second),
		ExpiresAt: goldenTime(24*time.Hour + time.Second),
	},
	"rejected": {
		State: store.StateExpired, Fingerprint: goldenFingerprint(0), Attempt: 9, Retention: 24 * time.Hour,
		LastError: "rejected", CreatedAt: goldenTime(0), SettledAt: goldenTime(time.Second),
		ExpiresAt: goldenTime(24*time.Hour + time.Second),
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

// print is a row as the golden files hold it: a column a line, but for those that are NULL.
func (r *row) print() (text []byte) {
	fields := r.fields()
	for i, name := range strings.Split(columns, ", ") {
		switch f := fields[i].(type) {
		case *int64:
			text = fmt.Appendf(text, "%s %d\n", name, *f)
		case *int16:
			text = fmt.Appendf(text, "%s %d\n", name, *f)
		case *mark:
			if *f {
				text = fmt.Appendf(text, "%s %t\n", name, *f)
			}
		case *pgtype.UUID:
			if f.Valid {
				text = fmt.Appendf(text, "%s %s\n", name, f)
			}
		case *optional:
			if *f != 0 {
				text = fmt.Appendf(text, "%s %d\n", name, *f)
			}
		case *[]byte:
			if *f != nil {
				text = fmt.Appendf(text, "%s %q\n", name, *f)
			}
		}
	}
	return text
}

// parseGolden is the inverse of print.
func parseGolden(t *testing.T, text []byte) (r row) {
	t.Helper()
	fields, names := r.fields(), strings.Split(columns, ", ")
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		column := slices.Index(names, name)
		if column < 0 {
			t.Fatalf("a golden file with %q", name)
		}
		n, _ := strconv.ParseInt(value, 10, 64)
		switch f := fields[column].(type) {
		case *int64:
			*f = n
		case *int16:
			*f = int16(n)
		case *mark:
			*f = value == "true"
		case *pgtype.UUID:
			*f = asUUID(value)
		case *optional:
			*f = optional(n)
		case *[]byte:
			unquoted, err := strconv.Unquote(value)
			if err != nil {
				t.Fatal(err)
			}
			*f = []byte(unquoted)
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
		r.encode(&rec, [16]byte{})
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
		if got, err := stored.record(rec.ID); err != nil || !reflect.DeepEqual(got, rec) {
			t.Errorf("S8: %s reads\n%+v (%v), want\n%+v", name, got, err, rec)
		}
	}
}

// TestRowRoundTrip walks records through all that can happen to them, and keeps each step in a row and back.
func TestRowRoundTrip(t *testing.T) {
	t.Parallel()
	seen := make(map[store.State]int)
	// Some states are rare: a hundred walks may miss one, and a thousand do not.
	for rounds := 0; rounds < 10 && len(seen) < int(store.StateExpired); rounds++ {
		rapid.Check(t, func(t *rapid.T) { walkRows(t, seen) })
	}
	for state := store.StateInProgress; state <= store.StateExpired; state++ {
		if seen[state] == 0 {
			t.Errorf("no record was %s: the walk proves nothing about that state", state)
		}
	}
}

// walkRows is one walk. It counts the states that it came through.
func walkRows(t *rapid.T, seen map[store.State]int) {
	id := drawID(t)
	now := time.UnixMicro(1_767_323_045_123_456).UTC()
	var rec store.Record
	for range rapid.IntRange(1, 12).Draw(t, "events") {
		now = now.Add(time.Duration(rapid.Int64Range(1, 1<<42).Draw(t, "pause")) * time.Microsecond)
		after, outcome, err := store.Step(rec, drawEvent(t, &rec, id), now)
		switch {
		case err != nil || outcome.Effect == store.EffectNone:
			continue
		case outcome.Effect == store.EffectRemove:
			rec = store.Record{}
			continue
		}
		rec = after
		seen[rec.State]++
		wantRoundTrip(t, &rec)
	}
}

// wantRoundTrip encodes a record and decodes it again.
func wantRoundTrip(t *rapid.T, rec *store.Record) {
	var r row
	r.encode(rec, [16]byte{1})
	got, err := r.record(rec.ID)
	if err != nil {
		t.Fatalf("S8: a record that is %s does not come back: %v", rec.State, err)
	}
	if want := *rec; !reflect.DeepEqual(got, want) {
		t.Fatalf("S8: a record that is %s comes back as\n%+v, want\n%+v", rec.State, got, want)
	}
	if _, err := r.record(store.ID{Scope: rec.Scope, Key: rec.Key + "x"}); !errors.Is(err, store.ErrUnreadable) {
		t.Fatalf("I9: the record of another key got %v, want ErrUnreadable", err)
	}
}

// TestSettledFollowsFromTheExpiry: what an earlier state left behind about when it was settled or lost does not count
// for a settled record, nor for one in progress.
func TestSettledFollowsFromTheExpiry(t *testing.T) {
	t.Parallel()
	for name, rec := range goldenRows {
		var r row
		r.encode(&rec, [16]byte{})
		stale := goldenTime(-time.Hour)
		r.settled = optional(micros(stale))
		want := rec.SettledAt
		if rec.State == store.StateUnknown || rec.State == store.StateExpired {
			want = stale
		}
		if got, err := r.record(rec.ID); err != nil || !got.SettledAt.Equal(want) {
			t.Errorf("S2: %s was settled at %s (%v), want %s", name, got.SettledAt, err, want)
		}
	}
}

// FuzzDecodeRow: whatever stands in the columns, reading it does not panic, and what can be read is written so that it
// reads the same.
func FuzzDecodeRow(f *testing.F) {
	for _, rec := range goldenRows {
		var r row
		r.encode(&rec, [16]byte{})
		f.Add(r.attempt, r.due, r.retention, int64(r.created), int64(r.settled), r.state, r.version, r.status, r.nonce,
			r.fingerprint, r.header, r.body)
	}
	f.Fuzz(func(t *testing.T, attempt, due, retention, created, settled int64, state, version, status int16,
		nonce, fingerprint, header, body []byte,
	) {
		r := row{
			attempt: attempt, due: due, retention: retention, created: optional(created), settled: optional(settled), state: state,
			version: version, status: status, nonce: nonce, fingerprint: fingerprint, header: header, body: body,
		}
		rec, err := r.decode()
		if err != nil || retention < 0 || due != micros(rec.Due()) {
			return // no program writes a moment that is farther away than a duration reaches
		}
		var again row
		again.encode(&rec, [16]byte{})
		if got, err := again.decode(); err != nil || !reflect.DeepEqual(got, rec) {
			t.Errorf("%+v\nis written so that it reads\n%+v (%v)", rec, got, err)
		}
	})
}

// This file draws what can happen to a record. The tests of the encoding are inside of the package: rows have no other
// door.

// drawID draws a key, often one that is packed.
func drawID(t *rapid.T) store.ID {
	key := rapid.OneOf(rapid.StringN(0, 40, -1),
		rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`))
	return store.ID{Scope: rapid.StringN(0, 20, -1).Draw(t, "scope"), Key: key.Draw(t, "key")}
}

// drawRetention draws one that a row holds exactly.
func drawRetention(t *rapid.T) time.Duration {
	if rapid.Bool().Draw(t, "short") {
		return time.Duration(rapid.Int64Range(1, math.MaxInt32).Draw(t, "microseconds")) * time.Microsecond
	}
	return time.Duration(rapid.Int64Range(1, math.MaxInt32).Draw(t, "seconds")) * time.Second
}

func drawBytes[T ~[16]byte | ~[32]byte](t *rapid.T, label string) (b T) {
	drawn := rapid.SliceOfN(rapid.Byte(), 0, len(b)).Draw(t, label)
	for i := range drawn {
		b[i] = drawn[i]
	}
	return b
}

func drawReservation(t *rapid.T, id store.ID) *store.Reservation {
	nonce := drawBytes[store.Nonce](t, "nonce")
	nonce[15] = 1 // none is zero
	return &store.Reservation{
		ID: id, Operation: rapid.StringN(0, 20, -1).Draw(t, "operation"),
		Fingerprints: []store.Fingerprint{{
			Secret: rapid.Uint32().Draw(t, "secret"), Rules: rapid.Uint8().Draw(t, "rules"),
			Sum: drawBytes[[32]byte](t, "sum"), Session: drawBytes[[16]byte](t, "session"),
		}},
		OnLost: rapid.SampledFrom([]store.LostPolicy{store.LostReconcile, store.LostResume}).Draw(t, "policy"),
		Nonce:  nonce, Lease: time.Duration(rapid.Int64Range(1, 1<<40).Draw(t, "lease")) * time.Microsecond,
		Retention:        drawRetention(t),
		DownstreamSecret: rapid.Uint32().Draw(t, "downstream secret"),
		TraceID:          rapid.OneOf(rapid.StringN(0, 40, -1), rapid.StringMatching(`[0-9a-f]{32}([0-9a-f]{16})?`)).Draw(t, "trace"),
	}
}

func drawResponse(t *rapid.T) store.Response {
	text := rapid.StringN(0, 20, -1)
	field := rapid.OneOf(
		rapid.Just(store.HeaderField{Name: "Content-Type", Value: "application/json"}),
		rapid.Custom(func(t *rapid.T) store.HeaderField {
			return store.HeaderField{Name: rapid.OneOf(rapid.SampledFrom([]string{"Content-Type", "Location", "Vary"}), text).Draw(t, "name"), Removed: true}
		}),
		rapid.Custom(func(t *rapid.T) store.HeaderField {
			return store.HeaderField{
				Name:  rapid.SampledFrom([]string{"Content-Type", "Location", "Vary"}).Draw(t, "name"),
				Value: text.Draw(t, "value"), Append: rapid.Bool().Draw(t, "append"),
			}
		}),
		rapid.Custom(func(t *rapid.T) store.HeaderField {
			return store.HeaderField{
				Name: text.Draw(t, "name"), Value: text.Draw(t, "value"), Append: rapid.Bool().Draw(t, "append"),
			}
		}),
	)
	return store.Response{
		Status:    rapid.IntRange(200, 999).Draw(t, "status"),
		Header:    append([]store.HeaderField(nil), rapid.SliceOfN(field, 0, 5).Draw(t, "header")...),
		Body:      drawOptional(t, "body"),
		NotStored: rapid.Bool().Draw(t, "not stored"),
	}
}

// drawOptional draws bytes that are nil if there are none.
func drawOptional(t *rapid.T, label string) []byte {
	return append([]byte(nil), rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, label)...)
}

// drawEvent draws something that may happen to the record, mostly by its owner.
func drawEvent(t *rapid.T, rec *store.Record, id store.ID) store.Event {
	r := drawReservation(t, id)
	if rec.State != store.StateNone && rapid.IntRange(0, 9).Draw(t, "another request") > 0 {
		r.Fingerprints = []store.Fingerprint{rec.Fingerprint}
	}
	return store.Event{
		Kind:        store.EventKind(rapid.IntRange(int(store.EventReserve), int(store.EventRetain)).Draw(t, "kind")),
		Reservation: r, Token: rapid.Int64Range(1, 1<<40).Draw(t, "token"), Attempt: rec.Attempt, Lease: r.Lease,
		Checkpoint: store.Checkpoint{
			Point: rapid.StringN(0, 10, -1).Draw(t, "point"), Data: drawOptional(t, "data"), NotReplayable: rapid.Bool().Draw(t, "not replayable"),
		},
		Completion: &store.Completion{
			Response: drawResponse(t), Retention: drawRetention(t), ProviderID: rapid.StringN(0, 10, -1).Draw(t, "provider"),
		},
		Reason: rapid.StringN(0, 20, -1).Draw(t, "reason"), MaxAttempts: rapid.IntRange(0, 3).Draw(t, "limit"),
		Soft: true, Force: rapid.Bool().Draw(t, "force"),
	}
}
