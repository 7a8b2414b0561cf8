package postgres

import (
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward/store"
)

// operationNumber is that of every operation in these tests.
const operationNumber = 7

// named looks the one operation up that has a number.
func named(name string) func(int32) (string, error) {
	return func(number int32) (string, error) {
		if number != operationNumber {
			return "", errors.New("there is no such operation")
		}
		return name, nil
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
		for _, number := range []int32{operationByName, operationNumber} {
			wantRoundTrip(t, &rec, number)
		}
	}
}

// wantRoundTrip encodes a record and decodes it again.
func wantRoundTrip(t *rapid.T, rec *store.Record, number int32) {
	var r row
	r.encode(rec, [16]byte{1}, number)
	got, err := r.record(rec.ID, named(rec.Operation))
	if err != nil {
		t.Fatalf("S8: a record that is %s does not come back: %v", rec.State, err)
	}
	if want := *rec; !reflect.DeepEqual(got, want) {
		t.Fatalf("S8: a record that is %s comes back as\n%+v, want\n%+v", rec.State, got, want)
	}
	if _, err := r.record(store.ID{Scope: rec.Scope, Key: rec.Key + "x"}, named(rec.Operation)); !errors.Is(err, store.ErrUnreadable) {
		t.Fatalf("I9: the record of another key got %v, want ErrUnreadable", err)
	}
}

// TestSettledFollowsFromTheExpiry: what an earlier state left behind about when it was settled or lost does not count for a
// settled record, nor for one in progress.
func TestSettledFollowsFromTheExpiry(t *testing.T) {
	t.Parallel()
	for name, rec := range goldenRows {
		var r row
		r.encode(&rec, [16]byte{}, operationNumber)
		stale := goldenTime(-time.Hour)
		r.more = appendTime(r.more, tagSettled, stale)
		want := rec.SettledAt
		if keepsSettled(rec.State) {
			want = stale
		}
		if got, err := r.record(rec.ID, named(rec.Operation)); err != nil || !got.SettledAt.Equal(want) {
			t.Errorf("S2: %s was settled at %s (%v), want %s", name, got.SettledAt, err, want)
		}
	}
}

// TestPackRetention: what fits into the column comes back as it was, and the rest is kept longer by less than a second.
func TestPackRetention(t *testing.T) {
	t.Parallel()
	const longest = math.MaxInt32 * time.Second
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(1, int64(longest/time.Microsecond)).Draw(t, "microseconds")) * time.Microsecond
		got := unpackRetention(packRetention(d))
		exact := d%time.Second == 0 || d <= math.MaxInt32*time.Microsecond
		if got < d || got >= d+time.Second || exact && got != d {
			t.Fatalf("%s is kept as %s", d, got)
		}
	})
	for d, want := range map[time.Duration]time.Duration{
		0: 0, time.Microsecond: time.Microsecond, 24 * time.Hour: 24 * time.Hour, longest: longest, longest + time.Second: longest,
		time.Hour + time.Millisecond: time.Hour + time.Second, math.MaxInt64: longest,
	} {
		if got := unpackRetention(packRetention(d)); got != want {
			t.Errorf("%s is kept as %s, want %s", d, got, want)
		}
	}
}

// FuzzDecodeRow: whatever stands in the columns, reading it does not panic, and what can be read is written so that it reads
// the same.
func FuzzDecodeRow(f *testing.F) {
	for _, rec := range goldenRows {
		var r row
		r.encode(&rec, [16]byte{}, operationNumber)
		f.Add(r.attempt, r.due, r.retention, r.queue, r.answer, r.request, r.more)
	}
	f.Fuzz(func(t *testing.T, attempt, due int64, retention int32, queue int16, answer, request, more []byte) {
		r := row{attempt: attempt, due: due, retention: retention, queue: queue, answer: answer, request: request, more: more}
		rec, err := r.decode(named("POST /payments"))
		if err != nil || retention == math.MinInt32 { // which no program writes
			return
		}
		number := int32(operationByName)
		if asked, _ := parseRequest(request); asked.number != operationByName {
			number = operationNumber
		}
		var again row
		again.encode(&rec, [16]byte{}, number)
		if got, err := again.decode(named("POST /payments")); err != nil || !reflect.DeepEqual(got, rec) {
			t.Errorf("%+v\nis written so that it reads\n%+v (%v)", rec, got, err)
		}
	})
}
