// Package view says what of a record, a message and an entry of the audit a program is shown: the fields of --json,
// which are documented and stay. Bodies, payloads and carried data are not among them: they are revealed.
package view

import (
	"encoding/base64"
	"time"
	"unicode/utf8"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// ID names an operation. JSON is UTF-8, keys and scopes need not be: the exact bytes of those that are not come beside.
type ID struct {
	Hash        string `json:"hash"`
	Scope       string `json:"scope"`
	ScopeBase64 string `json:"scope_base64,omitempty"`
	Key         string `json:"key"`
	KeyBase64   string `json:"key_base64,omitempty"`
}

// OfID is the view of an ID.
func OfID(id store.ID) ID {
	return ID{
		Hash: id.Hash(), Scope: id.Scope, ScopeBase64: exact(id.Scope), Key: id.Key, KeyBase64: exact(id.Key),
	}
}

// exact is text that JSON cannot hold, in base64; empty for all other text.
func exact(s string) string {
	if utf8.ValidString(s) {
		return ""
	}
	return base64.StdEncoding.EncodeToString([]byte(s))
}

// Record is a record.
type Record struct {
	ID
	Operation      string    `json:"operation"`
	State          string    `json:"state"`
	DeadLetter     bool      `json:"dead_letter"`
	LostOwner      bool      `json:"lost_owner,omitempty"`
	Unreadable     bool      `json:"unreadable,omitempty"`
	Attempt        int64     `json:"attempt,string"`
	OnLost         string    `json:"on_lost"`
	Point          string    `json:"point,omitempty"`
	Status         int       `json:"status,omitempty"`
	ProviderID     string    `json:"provider_id,omitempty"`
	FirstError     string    `json:"first_error,omitempty"`
	LastError      string    `json:"last_error,omitempty"`
	ReconcileCount int       `json:"reconcile_count,omitempty"`
	ReconcileError string    `json:"reconcile_error,omitempty"`
	ReconcileAt    time.Time `json:"reconcile_at,omitzero"`
	TraceID        string    `json:"trace_id,omitempty"`
	CreatedAt      time.Time `json:"created_at,omitzero"`
	LeaseUntil     time.Time `json:"lease_until,omitzero"`
	SettledAt      time.Time `json:"settled_at,omitzero"`
	ExpiresAt      time.Time `json:"expires_at,omitzero"`
	Cursor         string    `json:"cursor,omitempty"`
}

// OfRecord is the view of a record.
func OfRecord(rec *store.Record) Record {
	return Record{
		ID: OfID(rec.ID), Operation: rec.Operation, State: rec.State.String(), DeadLetter: rec.DeadLetter,
		Unreadable: rec.Version == 0, Attempt: rec.Attempt, OnLost: OnLost(rec.OnLost), Point: rec.Point,
		Status: rec.Response.Status, ProviderID: rec.ProviderID, FirstError: rec.FirstError, LastError: rec.LastError,
		ReconcileCount: rec.ReconcileCount, ReconcileError: rec.ReconcileError, ReconcileAt: utc(rec.ReconcileAt),
		TraceID: rec.TraceID, CreatedAt: utc(rec.CreatedAt), LeaseUntil: utc(rec.LeaseUntil),
		SettledAt: utc(rec.SettledAt), ExpiresAt: utc(rec.ExpiresAt), Cursor: operate.Cursor(rec.ID),
	}
}

// OnLost names a policy on a lost owner.
func OnLost(p store.LostPolicy) string {
	if p == store.LostResume {
		return "resume"
	}
	return "reconcile"
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}

// Message is a message of the outbox.
type Message struct {
	MessageID     string    `json:"id"`
	Topic         string    `json:"topic"`
	Type          string    `json:"type"`
	AggregateType string    `json:"aggregate_type,omitempty"`
	AggregateID   string    `json:"aggregate_id,omitempty"`
	State         string    `json:"state"`
	Attempts      int       `json:"attempts"`
	LastError     string    `json:"last_error,omitempty"`
	DownstreamKey string    `json:"downstream_key,omitempty"`
	ProviderID    string    `json:"provider_id,omitempty"`
	Origin        *ID       `json:"origin,omitempty"`
	OriginAttempt int64     `json:"origin_attempt,omitempty,string"`
	ContentType   string    `json:"content_type,omitempty"`
	PayloadBytes  int       `json:"payload_bytes"`
	CreatedAt     time.Time `json:"created_at,omitzero"`
	Due           time.Time `json:"due,omitzero"`
}

// OfMessage is the view of a message.
func OfMessage(e *outbox.Entry) Message {
	m := Message{
		MessageID: e.ID, Topic: e.Topic, Type: e.Type, AggregateType: e.AggregateType, AggregateID: e.AggregateID,
		State: e.State.String(), Attempts: e.Attempts, LastError: e.LastError, DownstreamKey: e.DownstreamKey,
		ProviderID: e.ProviderID, OriginAttempt: e.OriginAttempt, ContentType: e.ContentType,
		PayloadBytes: len(e.Payload), CreatedAt: utc(e.CreatedAt), Due: utc(e.Due),
	}
	if e.Origin != (store.ID{}) {
		origin := OfID(e.Origin)
		m.Origin = &origin
	}
	return m
}

// Audit is an entry of the audit of acts.
type Audit struct {
	At time.Time `json:"at"`
	ID
	Attempt int64  `json:"attempt,string"`
	Actor   string `json:"actor"`
	Action  string `json:"action"`
	Reason  string `json:"reason"`
	Outcome string `json:"outcome,omitempty"`
}

// OfAudit is the view of an entry of the audit.
func OfAudit(e *store.AuditEntry) Audit {
	return Audit{
		At: utc(e.At), ID: OfID(e.ID), Attempt: e.Attempt, Actor: e.Actor, Action: e.Action, Reason: e.Reason,
		Outcome: e.Outcome,
	}
}

// Execution is an entry of the audit of executions.
type Execution struct {
	At time.Time `json:"at"`
	ID
	Operation string `json:"operation"`
	Actor     string `json:"actor"`
	Decision  string `json:"decision"`
	Origin    string `json:"origin,omitempty"`
	Attempt   int64  `json:"attempt,omitempty,string"`
}

// OfExecution is the view of an entry of the audit of executions.
func OfExecution(e *store.ExecutionEntry) Execution {
	v := Execution{
		At: utc(e.At), ID: OfID(e.ID), Operation: e.Operation, Actor: e.Actor, Decision: e.Decision.String(),
		Attempt: e.Attempt,
	}
	if e.Origin != 0 {
		v.Origin = e.Origin.String()
	}
	return v
}

// Content is what was revealed: text as it is, and all else in base64.
type Content struct {
	Text   string `json:"text,omitempty"`
	Base64 string `json:"base64,omitempty"`
	Sealed bool   `json:"sealed,omitempty"`
}

// OfContent is the view of content; nil if there is none. What is sealed is not shown: it would tell nothing.
func OfContent(b []byte) *Content {
	switch {
	case len(b) == 0:
		return nil
	case store.IsSealed(b):
		return &Content{Sealed: true}
	case utf8.Valid(b):
		return &Content{Text: string(b)}
	default:
		return &Content{Base64: base64.StdEncoding.EncodeToString(b)}
	}
}
