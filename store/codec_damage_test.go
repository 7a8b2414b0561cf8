package store_test

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"runtime"
	"testing"

	"github.com/onceward/onceward/store"
)

// This file is about bytes that are not a record of this program: newer, cut off, or damaged.

func TestUnknownVersionIsUnreadable(t *testing.T) {
	t.Parallel()
	rec := goldenRecords["completed"]
	encoded := rec.AppendBinary(nil)
	for _, version := range []uint8{0, store.RecordVersion + 1, 255} {
		encoded[0] = version
		_, err := store.DecodeRecord(stepID, encoded)
		requireUnreadable(t, version, err)
	}
	_, err := store.DecodeRecord(stepID, nil)
	requireUnreadable(t, 0, err)
}

func TestDamageIsUnreadable(t *testing.T) {
	t.Parallel()
	for name, rec := range goldenRecords {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			encoded := rec.AppendBinary(nil)
			for n := 1; n < len(encoded); n++ {
				got, err := store.DecodeRecord(stepID, encoded[:n:n])
				requireUnreadable(t, 1, err)
				if !reflect.DeepEqual(got, store.Record{}) {
					t.Fatalf("cut off at %d it is %+v", n, got)
				}
			}
			_, err := store.DecodeRecord(stepID, append(bytes.Clone(encoded), 0))
			requireUnreadable(t, 1, err)
			for i, name := range []string{"version", "state", "policy", "flags"} {
				damaged := bytes.Clone(encoded)
				damaged[i] = 0xff
				if _, err := store.DecodeRecord(stepID, damaged); err == nil {
					t.Errorf("a %s of 255 was read", name)
				}
			}
		})
	}
	none := store.Record{Version: 1}
	_, err := store.DecodeRecord(stepID, none.AppendBinary(nil))
	requireUnreadable(t, 1, err)
}

// TestDamagedCountsAllocateLittle: a length or a count that promises gigabytes is refused before anything is made for
// it.
func TestDamagedCountsAllocateLittle(t *testing.T) {
	rec := goldenRecords["completed"]
	rec.Response = store.Response{Status: 200}
	encoded := rec.AppendBinary(nil)
	answerless := encoded[:len(encoded)-2] // without the count of fields and the length of the body
	huge := binary.AppendUvarint(nil, 1<<40)
	damaged := map[string][]byte{
		"header fields":      append(bytes.Clone(answerless), huge...),
		"body":               append(append(bytes.Clone(answerless), 0), huge...),
		"name":               append(append(bytes.Clone(answerless), 1, 0), append(huge, 0, 0, 0)...),
		"overlong number":    append(bytes.Clone(answerless), bytes.Repeat([]byte{0xff}, 11)...),
		"fields without end": append(append(bytes.Clone(answerless), 200, 1), bytes.Repeat([]byte{0}, 700)...),
	}
	for name, b := range damaged {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := store.DecodeRecord(stepID, b)
		runtime.ReadMemStats(&after)
		if err == nil && name != "fields without end" {
			t.Errorf("%s: it was read", name)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
			t.Errorf("%s: %d bytes were allocated for %d", name, grown, len(b))
		}
	}
}

// FuzzDecodeRecord: whatever the bytes, there is no panic, and what can be read can be written and read again.
func FuzzDecodeRecord(f *testing.F) {
	for _, rec := range goldenRecords {
		f.Add(rec.AppendBinary(nil))
	}
	f.Add([]byte{})
	f.Add([]byte{store.RecordVersion + 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := store.DecodeRecord(stepID, b)
		if err != nil {
			var version uint8
			if len(b) > 0 {
				version = b[0]
			}
			requireUnreadable(t, version, err)
			return
		}
		again, err := store.DecodeRecord(stepID, rec.AppendBinary(nil))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(rec, again) {
			t.Errorf("read %+v\nthen %+v", rec, again)
		}
	})
}

// FuzzParseID: whatever the bytes, there is no panic, and an ID that was read is written so that it is read again.
func FuzzParseID(f *testing.F) {
	for _, id := range distinctIDs {
		f.Add(id.AppendBinary(nil))
	}
	f.Add([]byte{})
	f.Add([]byte{0, 1, 2, 3})
	f.Add([]byte{0, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := store.ParseID(b)
		if err != nil {
			if id != (store.ID{}) {
				t.Errorf("%+v, %v", id, err)
			}
			return
		}
		if again, err := store.ParseID(id.AppendBinary(nil)); err != nil || again != id {
			t.Errorf("read %+v, then %+v, %v", id, again, err)
		}
	})
}
