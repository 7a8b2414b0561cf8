package postgres

import (
	"math"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward"
)

// This file draws what can happen to a record. The tests of the encoding are inside of the package: rows have no other door.

// drawID draws a key, often one that is packed.
func drawID(t *rapid.T) onceward.ID {
	key := rapid.OneOf(rapid.StringN(0, 40, -1), rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`))
	return onceward.ID{Scope: rapid.StringN(0, 20, -1).Draw(t, "scope"), Key: key.Draw(t, "key")}
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

func drawReservation(t *rapid.T, id onceward.ID) *onceward.Reservation {
	nonce := drawBytes[onceward.Nonce](t, "nonce")
	nonce[15] = 1 // none is zero
	return &onceward.Reservation{
		ID: id, Operation: rapid.StringN(0, 20, -1).Draw(t, "operation"),
		Fingerprints: []onceward.Fingerprint{{
			Secret: rapid.Uint32().Draw(t, "secret"), Rules: rapid.Uint8().Draw(t, "rules"),
			Sum: drawBytes[[32]byte](t, "sum"), Session: drawBytes[[16]byte](t, "session"),
		}},
		OnLost: rapid.SampledFrom([]onceward.LostPolicy{onceward.Reconcile, onceward.Resume}).Draw(t, "policy"),
		Nonce:  nonce, Lease: time.Duration(rapid.Int64Range(1, 1<<40).Draw(t, "lease")) * time.Microsecond,
		Retention:        drawRetention(t),
		DownstreamSecret: rapid.Uint32().Draw(t, "downstream secret"),
		TraceID:          rapid.OneOf(rapid.StringN(0, 40, -1), rapid.StringMatching(`[0-9a-f]{32}`)).Draw(t, "trace"),
	}
}

func drawResponse(t *rapid.T) onceward.Response {
	text := rapid.StringN(0, 20, -1)
	field := rapid.OneOf(
		rapid.SampledFrom(commonFields),
		rapid.Custom(func(t *rapid.T) onceward.HeaderField {
			return onceward.HeaderField{Name: rapid.OneOf(rapid.SampledFrom(commonNames), text).Draw(t, "name"), Removed: true}
		}),
		rapid.Custom(func(t *rapid.T) onceward.HeaderField {
			return onceward.HeaderField{Name: rapid.SampledFrom(commonNames).Draw(t, "name"), Value: text.Draw(t, "value"), Append: rapid.Bool().Draw(t, "append")}
		}),
		rapid.Custom(func(t *rapid.T) onceward.HeaderField {
			return onceward.HeaderField{Name: text.Draw(t, "name"), Value: text.Draw(t, "value"), Append: rapid.Bool().Draw(t, "append")}
		}),
	)
	return onceward.Response{
		Status:    rapid.IntRange(200, 999).Draw(t, "status"),
		Header:    append([]onceward.HeaderField(nil), rapid.SliceOfN(field, 0, 5).Draw(t, "header")...),
		Body:      drawOptional(t, "body"),
		NotStored: rapid.Bool().Draw(t, "not stored"),
	}
}

// drawOptional draws bytes that are nil if there are none.
func drawOptional(t *rapid.T, label string) []byte {
	return append([]byte(nil), rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, label)...)
}

// drawEvent draws something that may happen to the record, mostly by its owner.
func drawEvent(t *rapid.T, rec *onceward.Record, id onceward.ID) onceward.Event {
	r := drawReservation(t, id)
	if rec.State != onceward.StateNone && rapid.IntRange(0, 9).Draw(t, "another request") > 0 {
		r.Fingerprints = []onceward.Fingerprint{rec.Fingerprint}
	}
	return onceward.Event{
		Kind:        onceward.EventKind(rapid.IntRange(int(onceward.EventReserve), int(onceward.EventResolveStep)).Draw(t, "kind")),
		Reservation: r, Token: rapid.Int64Range(1, 1<<40).Draw(t, "token"), Attempt: rec.Attempt, Lease: r.Lease,
		Checkpoint: onceward.Checkpoint{
			Point: rapid.StringN(0, 10, -1).Draw(t, "point"), Data: drawOptional(t, "data"), NotReplayable: rapid.Bool().Draw(t, "not replayable"),
		},
		Completion: &onceward.Completion{
			Response: drawResponse(t), Retention: drawRetention(t), ProviderID: rapid.StringN(0, 10, -1).Draw(t, "provider"),
		},
		Reason: rapid.StringN(0, 20, -1).Draw(t, "reason"), Limit: rapid.IntRange(0, 3).Draw(t, "limit"),
		Soft: true, Force: rapid.Bool().Draw(t, "force"),
	}
}
