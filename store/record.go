package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"
)

// ID names one record: a client's key within the scope it was sent in. Two IDs are the same operation only if both
// parts are equal byte for byte.
type ID struct {
	// Scope is the security boundary the key lives in, taken from authentication.
	Scope string
	// Key is the client's name for the operation.
	Key string
}

// Hash returns a hash of the ID in 32 hexadecimal digits, which identifies it in logs and traces without revealing the
// key. A [Finder] finds the record by this hash.
func (id ID) Hash() string {
	sum := id.HashBytes()
	return hex.EncodeToString(sum[:])
}

// HashBytes returns the hash as bytes, the first half of the SHA-256 of the encoded ID. Stores name their records by
// this hash, so that a log line leads to its record. The hash of an ID never changes, because it is stored.
func (id ID) HashBytes() [16]byte {
	sum := sha256.Sum256(id.AppendBinary(make([]byte, 0, usualID)))
	return [16]byte(sum[:16])
}

// usualID is the usual size of an encoded ID.
const usualID = 128

// ParseHash parses a hash in the form of [ID.Hash], in digits of either case.
func ParseHash(text string) (hash [16]byte, err error) {
	if len(text) != hex.EncodedLen(len(hash)) {
		return hash, fmt.Errorf("%w: %d characters are no hash of a key, which has %d hexadecimal digits",
			ErrNotFound, len(text), hex.EncodedLen(len(hash)))
	}
	if _, err := hex.Decode(hash[:], []byte(text)); err != nil {
		return hash, fmt.Errorf("%w: the hash of a key is made of hexadecimal digits: %w", ErrNotFound, err)
	}
	return hash, nil
}

// State is the state of a record.
type State uint8

// These are the states of a record. Their numbers are stored and never change.
const (
	// StateNone stands for the absence of a record.
	StateNone State = 0
	// StateInProgress is the state of a record whose owner holds, or held, the right to execute.
	StateInProgress State = 1
	// StateCompleted is the state of a record with a final answer, which every retry gets.
	StateCompleted State = 2
	// StateRetryable is the state of a record whose operation certainly did nothing: a retry may execute.
	StateRetryable State = 3
	// StateUnknown is the state of a record whose owner was lost after it may have done something: only a reconciler,
	// an operator or the same owner settles it.
	StateUnknown State = 4
	// StateExpired is the state of a record that no caller sees any more, and that is kept only for its attempt token.
	StateExpired State = 5
)

var stateNames = [...]string{"none", "in_progress", "completed", "failed_retryable", "unknown", "expired"}

// String returns the name of the state as the specification writes it.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "invalid"
}

// Settled reports whether a record in this state may be removed because of its age alone.
func (s State) Settled() bool {
	return s == StateCompleted || s == StateRetryable
}

// LostPolicy is what happens to an operation whose owner was lost. It is stored with the record, because a sweeper does
// not know the routes.
type LostPolicy uint8

// These are the policies on a lost owner. Their numbers are stored and never change.
const (
	// LostReconcile makes the operation unknown: it is never executed again on a guess. This is the default.
	LostReconcile LostPolicy = 0
	// LostResume lets a later attempt continue from the last recovery point.
	LostResume LostPolicy = 1
)

// Nonce identifies one call of Reserve, so that the call can be repeated when its reply was lost.
type Nonce [16]byte

// Fingerprint is the keyed hash of a request's content, with what is needed to compute it again.
type Fingerprint struct {
	// Secret is the id of the secret that keys the hash.
	Secret uint32
	// Rules is the version of the encoding of the request.
	Rules uint8
	// Sum is the hash.
	Sum [32]byte
	// Session binds the key to the caller's session; zero means that it is not bound.
	Session [16]byte
}

// comparable reports whether f and g were made by the same rules with the same secret.
func (f *Fingerprint) comparable(g *Fingerprint) bool {
	return f.Secret == g.Secret && f.Rules == g.Rules
}

// accepts reports whether g is the fingerprint of the request that f was stored for. A stored fingerprint without a
// session accepts any session: the route may have started to bind keys after it was stored.
func (f *Fingerprint) accepts(g *Fingerprint) bool {
	return f.Sum == g.Sum && (f.Session == [16]byte{} || f.Session == g.Session)
}

// Matches compares a stored fingerprint with the candidate that was made by the same rules and secret. Without such a
// candidate it returns an error, because neither a replay nor a mismatch would be right.
func (f *Fingerprint) Matches(candidates []Fingerprint) (bool, error) {
	for i := range candidates {
		if f.comparable(&candidates[i]) {
			return f.accepts(&candidates[i]), nil
		}
	}
	return false, &UnreadableError{
		Version: RecordVersion,
		Reason: fmt.Sprintf("its fingerprint was made with secret %d by rules %d, which are not configured",
			f.Secret, f.Rules),
	}
}

// HeaderField is one value of one header field of a stored response.
type HeaderField struct {
	// Name is the canonical name of the field.
	Name string
	// Value is one of its values; a field with several values has several entries, in order.
	Value string
	// Append means that the handler added a value to an existing field, so that a replay adds it too.
	Append bool
	// Removed means that the handler removed a field that existed before the handler ran, or kept the server from
	// adding the field, so that a replay does the same. Value is then empty.
	Removed bool
}

// Response is a stored answer.
type Response struct {
	// Status is the HTTP status code; for a function run by onceward.Guard.Do it is 200, or 500 for a stored failure.
	Status int
	// Header holds the stored header fields in a stable order.
	Header []HeaderField
	// Body is the body, byte for byte.
	Body []byte
	// NotStored means that the body was too large, was streamed, or did not pass through the guard, and cannot be
	// replayed.
	NotStored bool
}

// Equal reports whether two responses are the same answer.
func (r *Response) Equal(other *Response) bool {
	return r.Status == other.Status && r.NotStored == other.NotStored &&
		slices.Equal(r.Header, other.Header) && bytes.Equal(r.Body, other.Body)
}

// RecordVersion is the version of the record layout that this program writes. It reads all versions up to this one.
const RecordVersion = 1

// Record is everything that is stored for one ID.
type Record struct {
	ID
	// Version is the schema version that the record was written with.
	Version uint8
	// State is the state of the record.
	State State
	// OnLost is the route's policy on a lost owner.
	OnLost LostPolicy
	// Operation is the method and route pattern, or the name given to onceward.Guard.Do.
	Operation string
	// Fingerprint is the fingerprint of the request that made the record.
	Fingerprint Fingerprint
	// Attempt is the fencing token: it grows each time the right to execute is granted.
	Attempt int64
	// Nonce identifies the Reserve call that made the current attempt, while the record is in progress.
	Nonce Nonce
	// LeaseUntil is when the right to execute ends, while the record is in progress.
	LeaseUntil time.Time
	// Retention is how long the record is kept after it was settled.
	Retention time.Duration
	// Point is the last recovery point; empty at the start.
	Point string
	// Data is the data that a phased operation passes from step to step.
	Data []byte
	// NotReplayable means that the answer was partly sent to the client without being stored.
	NotReplayable bool
	// Response is the answer of a completed record.
	Response Response
	// LastError is the reason why the record was last released, was rejected, or became unknown: what the attempt knew
	// about the operation. Errors of reconciliation are in ReconcileError.
	LastError string
	// FirstError is the first value that LastError had since the record was made. It is set when another error or a
	// further attempt replaces that value, because the last error is often not the cause of the trouble.
	FirstError string
	// ReconcileAt is when an unknown record is due for reconciliation.
	ReconcileAt time.Time
	// ReconcileCount is how often reconciliation was tried.
	ReconcileCount int
	// ReconcileError is why the last attempt to reconcile did not succeed, while the record is unknown. It is an error
	// of the query to the other system, and proves nothing about the operation. In a record that may be executed again,
	// it means that an earlier attempt was unknown, or lost, until it was resolved from outside.
	ReconcileError string
	// DeadLetter means that reconciliation has given up: a person must settle the record.
	DeadLetter bool
	// ProviderID is the id that the provider gave to the effect.
	ProviderID string
	// DownstreamSecret is the id of the secret from which the operation's downstream keys are derived. It remains the
	// secret of the first attempt, so that a rotation of secrets changes no key.
	DownstreamSecret uint32
	// TraceID is the trace of the first execution.
	TraceID string
	// CreatedAt is when the record was made.
	CreatedAt time.Time
	// SettledAt is when the record last entered a settled state or, while it is unknown, when its attempt was lost.
	SettledAt time.Time
	// ExpiresAt is when a settled record may be removed.
	ExpiresAt time.Time
}

// expired reports whether a reservation at now treats the record as absent.
func (r *Record) expired(now time.Time) bool {
	return r.State == StateExpired || r.State.Settled() && !now.Before(r.ExpiresAt)
}

// rejectedError is the last error of a rejected record. It distinguishes a repeated reject, which succeeds, from the
// write of an owner whose record was deleted, which is fenced.
const rejectedError = "rejected"

// rejected reports whether the record was left by a reject.
func (r *Record) rejected() bool { return r.State == StateExpired && r.LastError == rejectedError }

// fail records why the record is in its state; an empty reason means that a further attempt is running or has
// succeeded. The first reason is kept in FirstError.
func (r *Record) fail(reason string) {
	if r.FirstError == "" {
		r.FirstError = r.LastError
	}
	r.LastError = reason
}

// resolvedError is the reconcile error of a record that was resolved as not executed. It stays until the record is
// unknown again and reconciled: see [Record.MayHaveSent].
const resolvedError = "an earlier attempt was resolved as not executed"

// MayHaveSent reports whether an attempt may have sent something to another system: it left a recovery point, data or
// the provider's id, or was resolved from outside. Such a record cannot be rejected: another request would run under
// its downstream keys, while an earlier call may still arrive at the other system.
func (r *Record) MayHaveSent() bool {
	return r.Point != "" || len(r.Data) > 0 || r.ProviderID != "" || r.ReconcileError != ""
}

// leaseOver reports whether the owner of a record in progress has lost its lease.
func (r *Record) leaseOver(now time.Time) bool {
	return r.State == StateInProgress && !now.Before(r.LeaseUntil)
}

// ownerless reports whether a record in progress belongs to no attempt: it waits for the next one.
func (r *Record) ownerless() bool { return r.State == StateInProgress && r.Nonce == Nonce{} }

// at reports whether the record is at a checkpoint.
func (r *Record) at(p *Checkpoint) bool {
	return r.Point == p.Point && (p.Data == nil || bytes.Equal(r.Data, p.Data))
}

// Due returns when background work must process the record next: the end of its lease, its next reconciliation, or its
// expiry. Stores keep an index on it.
func (r *Record) Due() time.Time {
	switch r.State {
	case StateInProgress:
		return r.LeaseUntil
	case StateUnknown:
		return r.ReconcileAt
	default:
		return r.ExpiresAt
	}
}
