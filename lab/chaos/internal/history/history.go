package history

import "time"

// Attempt is one request of a client and what came back. All attempts of a run are recorded by one process, with one
// monotonic clock.
type Attempt struct {
	// Scope and Key identify the operation.
	Scope string `json:"scope"`
	Key   string `json:"key"`
	// Kind is what was asked for, such as "payment".
	Kind string `json:"kind"`
	// Payload is what was asked for. Equal payloads are equal requests; another payload under the same key is a
	// mismatch.
	Payload string `json:"payload"`
	// Reference is the name in this payload under which its effect would appear in the ledgers. It belongs to the
	// payload.
	Reference string `json:"reference"`
	// Amount is how much this payload asks to move, 0 for a kind without money. For a shipment it is how many parcels.
	Amount int64 `json:"amount,omitempty"`
	// Sent and Returned are in nanoseconds. Returned is 0 if no answer ever came: a timeout, a cut connection.
	Sent     int64 `json:"sent"`
	Returned int64 `json:"returned,omitempty"`
	// Status is 0 if no answer came.
	Status int `json:"status,omitempty"`
	// Code is the problem code of Onceward ("in-progress", "mismatch"), or empty if the answer is the application's
	// own.
	Code     string `json:"code,omitempty"`
	Replayed bool   `json:"replayed,omitempty"`
	Body     string `json:"body,omitempty"`
	// Headers are the stored headers that the client looked at: Location, Content-Type.
	Headers map[string]string `json:"headers,omitempty"`
	// Lost says why no answer came.
	Lost string `json:"lost,omitempty"`
}

// The calls of a node to its store, as [Write] names them.
const (
	CallReserve            = "reserve"
	CallTransact           = "transact"
	CallExtend             = "extend"
	CallCheckpoint         = "checkpoint"
	CallComplete           = "complete"
	CallRelease            = "release"
	CallAbandon            = "abandon"
	CallReject             = "reject"
	CallResolveCompleted   = "resolve completed"
	CallResolveNotExecuted = "resolve not executed"
	CallResolveStep        = "resolve step"
	CallRequeue            = "requeue"
	CallBust               = "bust"
	CallClaimMessage       = "claim message"
	CallFinishMessage      = "finish message"
	// CallFront is a look-up in the fast store in front of the durable one, accepted if that had the answer, and
	// CallFrontFailed a failure after which it is left alone for a while.
	CallFront       = "front"
	CallFrontFailed = "front failed"
)

// Write is one call of a node to its store, as the node's own journal has it. Times are of the machine's monotonic
// clock, the same for all nodes.
type Write struct {
	Node  string `json:"node"`
	Began int64  `json:"began,omitempty"`
	// Ended is 0 if the node died before the call came back: whether the call took effect is not known.
	Ended int64 `json:"ended,omitempty"`
	// Seq joins the line written before the call with the one written after it.
	Seq uint64 `json:"seq"`
	// Call is one of the names above.
	Call  string `json:"call,omitempty"`
	Scope string `json:"scope,omitempty"`
	Key   string `json:"key,omitempty"`
	// Message is what a call about the outbox names instead of a scope and a key.
	Message string `json:"message,omitempty"`
	// Attempt is the token that was granted (reserve, transact, claim message) or named.
	Attempt int64 `json:"attempt,omitempty"`
	// Nonce is that of a reservation: repeated with the same one, it is granted the same token again (S9).
	Nonce string `json:"nonce,omitempty"`
	// Lease is for how long the right to execute was asked for, in nanoseconds (reserve, extend).
	Lease int64 `json:"lease,omitempty"`
	// Granted says, for reserve and transact, that the right to execute was granted.
	Granted bool `json:"granted,omitempty"`
	// Accepted says that the call returned no error.
	Accepted bool `json:"accepted,omitempty"`
	// Now is the store's clock at the decision (reserve, transact), and Expires until when an answer that was stored
	// is kept (complete, transact). Both are in microseconds since 1970, and 0 if they are not known.
	Now     int64 `json:"now,omitempty"`
	Expires int64 `json:"expires,omitempty"`
	// Stale says that what the call removed may still be answered for [FrontAge].
	Stale bool `json:"stale,omitempty"`
	// Digest is that of the response, for complete and resolve completed, and for a transaction that was committed.
	Digest string `json:"digest,omitempty"`
	Err    string `json:"err,omitempty"`
}

// Record is a stored record when all is quiet.
type Record struct {
	Scope string `json:"scope"`
	Key   string `json:"key"`
	// State is "completed", "failed_retryable", "unknown", "in_progress" or "expired".
	State   string `json:"state"`
	Attempt int64  `json:"attempt"`
	// Status and Body are the stored answer of a completed record.
	Status    int    `json:"status,omitempty"`
	Body      string `json:"body,omitempty"`
	Digest    string `json:"digest,omitempty"`
	Operation string `json:"operation,omitempty"`
	// DeadLetter marks an unknown record that reconciliation has given up.
	DeadLetter bool `json:"dead_letter,omitempty"`
}

// Effect is one entry of the provider's books when all is quiet.
type Effect struct {
	// Book is "charges", "refunds" or "transfers".
	Book string `json:"book"`
	ID   string `json:"id"`
	// Scope and Key are those of the operation that the entry belongs to by its reference, empty if it belongs to none.
	Scope     string `json:"scope,omitempty"`
	Key       string `json:"key,omitempty"`
	Reference string `json:"reference,omitempty"`
	Amount    int64  `json:"amount,omitempty"`
	// Stray marks an effect that no client here asked for: it was put into the ledger for the comparisons to find.
	Stray bool `json:"stray,omitempty"`
	// Declined marks an entry by which no money moved: it is not an effect.
	Declined bool `json:"declined,omitempty"`
}

// Row is one row of a business table when all is quiet.
type Row struct {
	// Table is "payment", "refund", "booking", "entry", "arrival", or "stay" and the name of a step.
	Table     string `json:"table"`
	Scope     string `json:"scope"`
	Key       string `json:"key"`
	Reference string `json:"reference,omitempty"`
	// Item is what a booking took a place of, or the street that a parcel was sent to.
	Item string `json:"item,omitempty"`
	// State is, for a payment, "new", "charged" or "declined", and "confirmed" for a booking that came to its end.
	State string `json:"state,omitempty"`
	ID    string `json:"id,omitempty"`
	// Stray marks a row of what never happened: it was put into the table for the comparisons to find.
	Stray bool `json:"stray,omitempty"`
	// Late marks a stray of which it is not known whether it was there in time: comparisons may find it, and need not.
	Late bool `json:"late,omitempty"`
	// Number is that of a parcel in its shipment, and Place the one in which it arrived in its street, both from 1 on.
	Number int `json:"number,omitempty"`
	Place  int `json:"place,omitempty"`
}

// Act is one act of an operator, and what the operator was told.
type Act struct {
	Scope   string `json:"scope"`
	Key     string `json:"key"`
	Attempt int64  `json:"attempt"`
	Action  string `json:"action"`
	// Why is the reason that was given. No other act has the same.
	Why string `json:"why"`
	// Answered says that there was an answer, and Done that the act was done. Err is why it was not.
	Answered bool   `json:"answered,omitempty"`
	Done     bool   `json:"done,omitempty"`
	Err      string `json:"err,omitempty"`
}

// Audit is one entry of the audit when all is quiet.
type Audit struct {
	Scope   string `json:"scope"`
	Key     string `json:"key"`
	Attempt int64  `json:"attempt"`
	Actor   string `json:"actor"`
	Action  string `json:"action"`
	Reason  string `json:"reason"`
	// Outcome is empty in the entry that is written before the act.
	Outcome string `json:"outcome,omitempty"`
}

// Forgery is a webhook that the provider did not send, and what it was answered with.
type Forgery struct {
	Scope string `json:"scope"`
	Key   string `json:"key"`
	// How says what is wrong with it.
	How string `json:"how"`
	// Foreign says that it is signed as it should be, by another account: it may be kept, and settles nothing.
	Foreign bool `json:"foreign,omitempty"`
	// Claims is the id of the effect that it tells of, which does not exist.
	Claims string `json:"claims,omitempty"`
	// Status is 0 if no answer came.
	Status int `json:"status,omitempty"`
}

// Stock is how much of an item is left to be booked when all is quiet.
type Stock struct {
	Item string `json:"item"`
	// Total is how much there was before the first booking.
	Total int64 `json:"total"`
	Left  int64 `json:"left"`
}

// Message is one entry of the outbox when all is quiet.
type Message struct {
	ID    string `json:"id"`
	Scope string `json:"scope,omitempty"`
	Key   string `json:"key,omitempty"`
	Topic string `json:"topic,omitempty"`
	// State is "done", "captured", "dead" or whatever else the outbox says.
	State string `json:"state"`
}

// Finding is a difference that a comparison with the provider's ledger has found.
type Finding struct {
	// Run names the comparison and the window.
	Run string `json:"run"`
	// Key is the provider's id of the entry, and Kind what is wrong with it.
	Key  string `json:"key"`
	Kind string `json:"kind"`
	// At is when it was reported, by the machine's monotonic clock.
	At int64 `json:"at,omitempty"`
}

// FinalRun is how the names of comparisons begin that are made when all is quiet. What is on one side only is so for
// good then, while a comparison that is made in the storm finds what is still on its way.
const FinalRun = "final "

// Step is when the store's clock was set to another time, by the machine's monotonic clock.
type Step struct {
	Began int64 `json:"began"`
	Ended int64 `json:"ended"`
	// Clock is what the store's clock said then, in microseconds since 1970.
	Clock int64 `json:"clock"`
}

// FailOver is when a replica took the place of its primary, in a store that acknowledges writes before its replicas
// have them. What was written before Began the replica had; what was acknowledged from then on until Ended, when the
// primary was gone, it may not have had.
type FailOver struct {
	Fault string `json:"fault"`
	Began int64  `json:"began"`
	Ended int64  `json:"ended"`
	// Slots are those of the primary, each as its first and its last one.
	Slots [][2]int `json:"slots"`
}

// FrontAge is how old an answer of a fast store in front of the durable one can be.
const FrontAge = 2 * time.Second

// FrontLoss is when the front lost or got back what it held, and with it what it was told to drop.
type FrontLoss struct {
	Began int64 `json:"began"`
	Ended int64 `json:"ended"`
}

// Slot is the part of a store that holds all about an operation.
type Slot struct {
	Scope string `json:"scope"`
	Key   string `json:"key"`
	Slot  int    `json:"slot"`
}

// Call is an operation in the outbox of a caller when all is quiet.
type Call struct {
	Scope string `json:"scope"`
	Key   string `json:"key"`
	// State is "pending", "answered" or "unknown".
	State string `json:"state"`
	// Heard is how often the caller was told of it.
	Heard int `json:"heard"`
}

// Run is everything that a run left behind.
type Run struct {
	Attempts []Attempt
	Writes   []Write
	Records  []Record
	Effects  []Effect
	Rows     []Row
	Stock    []Stock
	Messages []Message
	Acts     []Act
	Calls    []Call
	Audits   []Audit
	// Forgeries are the webhooks of others than the provider.
	Forgeries []Forgery
	Findings  []Finding
	// Steps are when the store's clock was set.
	Steps       []Step
	FailOvers   []FailOver
	FrontLosses []FrontLoss
	// Slots are those of the operations that clients asked for, in a store that is spread over slots.
	Slots []Slot
	// Faults counts the faults that fired, by name.
	Faults map[string]int
	// Planned are the names of the faults that have to fire at least once.
	Planned []string
	// Unsettled says that not everything had become quiet when the run was looked at: what is missing may be on its way.
	Unsettled bool
}
