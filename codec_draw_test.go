package onceward_test

import (
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward"
)

// This file draws records at random.

func drawRecord(t *rapid.T) onceward.Record {
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
	rec := onceward.Record{
		ID:        onceward.ID{Scope: text.Draw(t, "scope"), Key: text.Draw(t, "key")},
		Version:   onceward.RecordVersion,
		State:     rapid.SampledFrom([]onceward.State{1, 2, 3, 4, 5}).Draw(t, "state"),
		OnLost:    rapid.SampledFrom([]onceward.LostPolicy{onceward.Reconcile, onceward.Resume}).Draw(t, "policy"),
		Operation: text.Draw(t, "operation"),
		Fingerprint: onceward.Fingerprint{
			Secret: rapid.Uint32().Draw(t, "secret"), Rules: rapid.Uint8().Draw(t, "rules"),
			Sum: filled.Draw(t, "sum"), Session: short("session"),
		},
		Attempt: rapid.Int64().Draw(t, "attempt"), Nonce: short("nonce"),
		LeaseUntil: moment.Draw(t, "lease"), Retention: time.Duration(rapid.Int64().Draw(t, "retention")),
		Point: text.Draw(t, "point"), Data: optional.Draw(t, "data"), NotReplayable: rapid.Bool().Draw(t, "not replayable"),
		LastError: text.Draw(t, "error"), ReconcileError: text.Draw(t, "reconcile error"),
		DownstreamSecret: rapid.Uint32().Draw(t, "downstream secret"), ReconcileAt: moment.Draw(t, "reconcile"),
		ReconcileCount: int(rapid.Int32Min(0).Draw(t, "count")), DeadLetter: rapid.Bool().Draw(t, "dead"),
		ProviderID: text.Draw(t, "provider"), TraceID: text.Draw(t, "trace"),
		CreatedAt: moment.Draw(t, "created"), SettledAt: moment.Draw(t, "settled"), ExpiresAt: moment.Draw(t, "expires"),
	}
	if rapid.Bool().Draw(t, "answered") {
		rec.Response = drawResponse(t, text, optional)
	}
	return rec
}

func drawResponse(t *rapid.T, text *rapid.Generator[string], optional *rapid.Generator[[]byte]) onceward.Response {
	field := rapid.Custom(func(t *rapid.T) onceward.HeaderField {
		if rapid.Bool().Draw(t, "removed") {
			return onceward.HeaderField{Name: text.Draw(t, "name"), Removed: true}
		}
		return onceward.HeaderField{Name: text.Draw(t, "name"), Value: text.Draw(t, "value"), Append: rapid.Bool().Draw(t, "append")}
	})
	return onceward.Response{
		Status:    rapid.IntRange(200, 999).Draw(t, "status"),
		Header:    append([]onceward.HeaderField(nil), rapid.SliceOfN(field, 0, 5).Draw(t, "header")...),
		Body:      optional.Draw(t, "body"),
		NotStored: rapid.Bool().Draw(t, "not stored"),
	}
}
