package redis

import (
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

var update = flag.Bool("update", false, "write the golden files of testdata/values again")

var (
	goldenID    = store.ID{Scope: "acme", Key: "key"}
	goldenPlace = newNames("golden", false).place(goldenID)
)

func goldenTime(after time.Duration) time.Time {
	return time.Date(2026, 1, 1, 12, 0, 0, 123_456_000, time.UTC).Add(after)
}

func goldenFingerprint(session byte) store.Fingerprint {
	f := store.Fingerprint{Secret: 300, Rules: 1, Session: [16]byte{session}}
	for i := range f.Sum {
		f.Sum[i] = byte(i)
	}
	return f
}

// goldenValues are one value for each thing that format 2 can hold, the first that was released. They are never changed,
// only added to: the files in testdata were written by every release so far.
func goldenValues() map[string]value {
	return map[string]value{
		"in-progress": {Record: store.Record{
			ID: goldenID, Version: 1, State: store.StateInProgress, Operation: "POST /payments",
			Fingerprint: goldenFingerprint(0), Attempt: 1_767_268_800_000_000, Nonce: store.Nonce{1, 2, 3, 15: 16},
			Retention: 24 * time.Hour, LeaseUntil: goldenTime(30 * time.Second), CreatedAt: goldenTime(0),
			TraceID: "4bf92f3577b34da6a3ce929d0e0e4736", DownstreamSecret: 7,
		}},
		"awaited-at-point": {awaited: true, revision: 3, Record: store.Record{
			ID: goldenID, Version: 1, State: store.StateInProgress, OnLost: store.LostResume, Operation: "POST /orders",
			Fingerprint: goldenFingerprint(7), Attempt: 3, Retention: 30 * 24 * time.Hour, Point: "charged",
			Data: []byte("\x00carried"), NotReplayable: true, ProviderID: "ch_1", ReconcileError: "resolved before",
			LeaseUntil: goldenTime(time.Minute), CreatedAt: goldenTime(0),
		}},
		"completed": {Record: store.Record{
			ID: goldenID, Version: 1, State: store.StateCompleted, Operation: "POST /payments",
			Fingerprint: goldenFingerprint(0), Attempt: 2, Retention: 24 * time.Hour, ProviderID: "ch_1",
			CreatedAt: goldenTime(0), SettledAt: goldenTime(time.Second), ExpiresAt: goldenTime(24*time.Hour + time.Second),
			Response: store.Response{Status: 201, Body: []byte(`{"id":1}`), Header: []store.HeaderField{
				{Name: "Location", Value: "/payments/1"},
				{Name: "Vary", Value: "Accept", Append: true},
				{Name: "Server", Removed: true},
			}},
		}},
		"not-stored": {Record: store.Record{
			ID: goldenID, Version: 1, State: store.StateCompleted, Fingerprint: goldenFingerprint(0), Attempt: 2,
			Retention: time.Hour, CreatedAt: goldenTime(0), SettledAt: goldenTime(1000), ExpiresAt: goldenTime(time.Hour),
			NotReplayable: true, Response: store.Response{Status: 200, NotStored: true},
		}},
		"retryable": {Record: store.Record{
			ID: goldenID, Version: 1, State: store.StateRetryable, Fingerprint: goldenFingerprint(0), Attempt: 9,
			Retention: time.Hour, LastError: "no stock", CreatedAt: goldenTime(0), SettledAt: goldenTime(1000),
			ExpiresAt: goldenTime(time.Hour),
		}},
		"dead-letter": {revision: 12, Record: store.Record{
			ID: goldenID, Version: 1, State: store.StateUnknown, Fingerprint: goldenFingerprint(1), Attempt: 9,
			Retention: time.Hour, LastError: "lease ran out", ReconcileError: "the provider is away", ReconcileCount: 10,
			ReconcileAt: goldenTime(time.Hour), DeadLetter: true, CreatedAt: goldenTime(0), SettledAt: goldenTime(1000),
		}},
		"expired": {Record: store.Record{
			ID: goldenID, Version: 1, State: store.StateExpired, Operation: "POST /payments", LastError: "rejected",
			Fingerprint: goldenFingerprint(0), Attempt: 9, Retention: time.Hour, CreatedAt: goldenTime(0),
			SettledAt: goldenTime(1000), ExpiresAt: goldenTime(time.Hour),
		}},
		"removed": {floor: 42, revision: 2, Record: store.Record{Retention: time.Hour, ExpiresAt: goldenTime(0)}},
	}
}

func goldenFile(name string) string { return filepath.Join("testdata", "values", "v2-"+name+".hex") }

func TestGoldenValues(t *testing.T) {
	t.Parallel()
	for name, want := range goldenValues() {
		stored := hex.EncodeToString(want.appendTo(nil)) + "\n"
		if *update {
			if err := os.WriteFile(goldenFile(name), []byte(stored), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		file, err := os.ReadFile(goldenFile(name))
		if err != nil {
			t.Fatal(err)
		}
		if string(file) != stored {
			t.Errorf("%s is stored as\n%swhich is not what earlier releases wrote:\n%s", name, stored, file)
		}
		b, err := hex.DecodeString(strings.TrimSpace(string(file)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(goldenPlace, string(b))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is read as\n%+v (%v), want\n%+v", name, got, err, want)
		}
		outline, d := value{}, decoder{rest: string(b[:min(len(b), outlineSize)])}
		d.outline(&outline)
		if d.err != nil || outline.State != want.State || !outline.Due().Equal(want.Due()) ||
			!outline.CreatedAt.Equal(want.CreatedAt) || outline.DeadLetter != want.DeadLetter {
			t.Errorf("the outline of %s is read as %+v (%v)", name, outline, d.err)
		}
	}
}

// TestSettledHasNoOwner leaves the lease and the nonce in place when it settles a record, as the script does.
func TestSettledHasNoOwner(t *testing.T) {
	t.Parallel()
	want := goldenValues()["completed"]
	b := want.appendTo(nil)
	for _, at := range []int{26, atNonce} {
		copy(b[at:], "leftover")
	}
	if got, err := decode(goldenPlace, string(b)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read as\n%+v (%v), want\n%+v", got, err, want)
	}
}

// TestDamagedValues cuts values off, adds to them and changes their format: none is taken for a record.
func TestDamagedValues(t *testing.T) {
	t.Parallel()
	for name, v := range goldenValues() {
		b := v.appendTo(nil)
		atVersion := headSize + 1 + len(goldenID.AppendBinary(nil))
		damaged := map[string]string{
			"another format": "\x01" + string(b[1:]), "another state": string(b[:1]) + "\x06" + string(b[2:]),
			"another flag": string(b[:66]) + "\xff" + string(b[67:]), "another policy": string(b[:67]) + "\x02" + string(b[68:]),
			"a retention past all time": string(b[:58]) + "\xff" + string(b[59:]), "too long": string(b) + "\x00\x00\x00\x00\x01",
		}
		if v.State != store.StateNone {
			damaged["another version"] = string(b[:atVersion]) + "\x02" + string(b[atVersion+1:])
			damaged["another ID"] = string(b[:atVersion-1]) + "x" + string(b[atVersion:])
		}
		for n := 1; n < len(b); n++ {
			if n < headSize || v.State != store.StateNone {
				damaged[fmt.Sprint("cut off at ", n)] = string(b[:n])
			}
		}
		for what, stored := range damaged {
			if got, err := decode(goldenPlace, stored); !errors.Is(err, store.ErrUnreadable) {
				t.Errorf("%s, %s: read as %+v (%v), want ErrUnreadable", name, what, got, err)
			}
		}
	}
}

// FuzzDecode reads any bytes: they are a record that is stored as these bytes again, or unreadable.
func FuzzDecode(f *testing.F) {
	for _, v := range goldenValues() {
		f.Add(v.appendTo(nil))
	}
	f.Fuzz(func(t *testing.T, stored []byte) {
		v, err := decode(goldenPlace, string(stored))
		if err != nil {
			if !errors.Is(err, store.ErrUnreadable) {
				t.Fatalf("%v, want ErrUnreadable", err)
			}
			return
		}
		again, err := decode(goldenPlace, string(v.appendTo(nil)))
		if len(stored) > 0 && (err != nil || !reflect.DeepEqual(again, v)) {
			t.Fatalf("read as\n%+v, stored again as\n%+v (%v)", v, again, err)
		}
	})
}
