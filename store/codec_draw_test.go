package store_test

import (
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward/store"
)

// This file draws records at random.

func drawRecord(t *rapid.T) store.Record {
	text := rapid.StringN(0, 20, -1)
	moment := rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "zero") {
			return time.Time{}
		}
		return time.UnixMicro(rapid.Int64Range(1, 1<<52).Draw(t, "us")).UTC()
	})
	filled := rapid.Custom(func(t *rapid.T) (b [32]byte) {
		copy(b[:], rapid.SliceOfN(rapid.Byte(), 0, 32).Draw(t, "b"))
		return b
	})
	optional := rapid.Custom(func(t *rapid.T) []byte {
		return append([]byte(nil), rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "bytes")...)
	})
	short := func(label string) [16]byte {
		b := filled.Draw(t, label)
		return [16]byte(b[:16])
	}
	rec := store.Record{
		ID:        store.ID{Scope: text.Draw(t, "scope"), Key: text.Draw(t, "key")},
		Version:   store.RecordVersion,
		State:     rapid.SampledFrom([]store.State{1, 2, 3, 4, 5}).Draw(t, "state"),
		OnLost:    rapid.SampledFrom([]store.LostPolicy{store.LostReconcile, store.LostResume}).Draw(t, "policy"),
		Operation: text.Draw(t, "operation"),
		Fingerprint: store.Fingerprint{
			Secret: rapid.Uint32().Draw(t, "secret"), Rules: rapid.Uint8().Draw(t, "rules"),
			Sum: filled.Draw(t, "sum"), Session: short("session"),
		},
		Attempt: rapid.Int64().Draw(t, "attempt"), Nonce: short("nonce"),
		LeaseUntil: moment.Draw(t, "lease"), Retention: time.Duration(rapid.Int64().Draw(t, "retention")),
		Point: text.Draw(t, "point"), Data: optional.Draw(t, "data"), NotReplayable: rapid.Bool().Draw(t,
			"not replayable"),
		LastError: text.Draw(t, "error"), FirstError: text.Draw(t, "first error"), ReconcileError: text.Draw(t, "reconcile error"),
		DownstreamSecret: rapid.Uint32().Draw(t, "downstream secret"), ReconcileAt: moment.Draw(t, "reconcile"),
		ReconcileCount: int(rapid.Int32Min(0).Draw(t, "count")), DeadLetter: rapid.Bool().Draw(t, "dead"),
		ProviderID: text.Draw(t, "provider"), TraceID: text.Draw(t, "trace"),
		CreatedAt: moment.Draw(t, "created"), SettledAt: moment.Draw(t, "settled"), ExpiresAt: moment.Draw(t,
			"expires"),
	}
	if rapid.Bool().Draw(t, "answered") {
		rec.Response = drawResponse(t, text, optional)
	}
	return rec
}

func drawResponse(t *rapid.T, text *rapid.Generator[string], optional *rapid.Generator[[]byte]) store.Response {
	field := rapid.Custom(func(t *rapid.T) store.HeaderField {
		if rapid.Bool().Draw(t, "removed") {
			return store.HeaderField{Name: text.Draw(t, "name"), Removed: true}
		}
		return store.HeaderField{
			Name: text.Draw(t, "name"), Value: text.Draw(t, "value"),
			Append: rapid.Bool().Draw(t, "append"),
		}
	})
	return store.Response{
		Status:    rapid.IntRange(200, 999).Draw(t, "status"),
		Header:    append([]store.HeaderField(nil), rapid.SliceOfN(field, 0, 5).Draw(t, "header")...),
		Body:      optional.Draw(t, "body"),
		NotStored: rapid.Bool().Draw(t, "not stored"),
	}
}
