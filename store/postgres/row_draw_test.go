package postgres

import (
	"math"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward/store"
)

// This file draws what can happen to a record. The tests of the encoding are inside of the package: rows have no other door.

// drawID draws a key, often one that is packed.
func drawID(t *rapid.T) store.ID {
	key := rapid.OneOf(rapid.StringN(0, 40, -1), rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`))
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
		TraceID:          rapid.OneOf(rapid.StringN(0, 40, -1), rapid.StringMatching(`[0-9a-f]{32}`)).Draw(t, "trace"),
	}
}

func drawResponse(t *rapid.T) store.Response {
	text := rapid.StringN(0, 20, -1)
	field := rapid.OneOf(
		rapid.SampledFrom(commonFields),
		rapid.Custom(func(t *rapid.T) store.HeaderField {
			return store.HeaderField{Name: rapid.OneOf(rapid.SampledFrom(commonNames), text).Draw(t, "name"), Removed: true}
		}),
		rapid.Custom(func(t *rapid.T) store.HeaderField {
			return store.HeaderField{Name: rapid.SampledFrom(commonNames).Draw(t, "name"), Value: text.Draw(t, "value"), Append: rapid.Bool().Draw(t, "append")}
		}),
		rapid.Custom(func(t *rapid.T) store.HeaderField {
			return store.HeaderField{Name: text.Draw(t, "name"), Value: text.Draw(t, "value"), Append: rapid.Bool().Draw(t, "append")}
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
		Kind:        store.EventKind(rapid.IntRange(int(store.EventReserve), int(store.EventResolveStep)).Draw(t, "kind")),
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
