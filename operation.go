package onceward

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/part"
	"github.com/onceward/onceward/store"
)

type operationKey struct{}

// Operation is a handler's view of its attempt. The methods of a nil Operation are safe for a request without
// protection.
type Operation struct {
	guard      *Guard
	id         store.ID
	name       string
	attempt    int64
	secret     *downstreamSecret // derives its downstream keys
	resumed    bool
	point      string
	sent       bool // an earlier attempt may have sent something: see [store.Record.MayHaveSent]
	data       []byte
	dataUse    atomic.Uint32
	lease      *lease
	origin     store.Origin
	execution  *execution // the execution of a reserved attempt
	outcome    atomic.Uint32
	rejected   atomic.Bool
	recorded   atomic.Bool // whether a recovery point was stored, or may have been
	tookTx     atomic.Bool // whether the last run took its transaction
	askedPool  atomic.Bool // whether a run asked the pool of its transaction for another connection
	pause      atomic.Int64
	keepWrites atomic.Bool
	retention  atomic.Int64
	providerID atomic.Pointer[string]
	reason     atomic.Pointer[string]
	reference  atomic.Pointer[string] // for replays without the body
	failure    atomic.Pointer[string] // the error that the handler returned
	parts      part.Counter
}

// These are the outcomes that a handler can set.
const (
	endedAsWritten uint32 = iota
	endedNotExecuted
	endedUnknown
	endedNeverExecuted
	endedSuspended
)

// FromContext returns the operation of the handler, or nil if the request is not protected. The methods of a nil
// operation can be called: they do nothing and return zero values. A method that sets something, and
// [Operation.DownstreamKey], logs this as an error, once for each line of code, because the context may be the wrong
// one.
func FromContext(ctx context.Context) *Operation {
	op, _ := store.Value(ctx, operationKey{}).(*Operation)
	return op
}

// Key returns the client's key.
func (o *Operation) Key() string {
	if o == nil {
		return ""
	}
	return o.id.Key
}

// Scope returns the scope of the key.
func (o *Operation) Scope() string {
	if o == nil {
		return ""
	}
	return o.id.Scope
}

// Name returns the method and route pattern, or the name given to [Guard.Do].
func (o *Operation) Name() string {
	if o == nil {
		return ""
	}
	return o.name
}

// Attempt returns the fencing token of this attempt: a number that grows with each attempt of the operation, and that
// no other attempt on any node has. A system that remembers the largest token it has seen can refuse an owner that
// writes too late. In transactional mode a try that was undone has its own token; if the next try follows on another
// node within the same millisecond, its token may be smaller.
func (o *Operation) Attempt() int64 {
	if o == nil {
		return 0
	}
	return o.attempt
}

// Logger returns the guard's logger with the attributes that identify the attempt in the guard's own lines: operation,
// key_hash and attempt. For a nil operation it is [slog.Default].
func (o *Operation) Logger() *slog.Logger {
	if o == nil {
		return slog.Default()
	}
	return o.guard.config.Logger.With("operation", o.name, "key_hash", o.id.Hash(), "attempt", strconv.FormatInt(o.attempt, 10))
}

// Resumed reports whether an earlier attempt was lost and this attempt continues from its recovery point.
func (o *Operation) Resumed() bool { return o != nil && o.resumed }

// Point returns the last recovery point of the earlier attempts, and the data stored there. A value of
// [Operation.Carry] is not part of it.
func (o *Operation) Point() (string, []byte) {
	switch {
	case o == nil:
		return "", nil
	case carries(o.data):
		return o.point, nil
	default:
		return o.point, o.data
	}
}

// DownstreamKey derives the idempotency key to send to another system for a step of this operation: 44 letters and
// digits from the namespace, the scope, the key and the step, which no outsider can compute. Every attempt, on every
// node, derives the same key, with the secret of the first attempt. After the record has expired the key is still the
// same, until the secret is rotated. [Guard.DownstreamKey] derives the key from the record.
//
// For a nil operation, which stands for a request without protection, it is empty. An empty key must not be sent: the
// other system could treat all such calls as one call. Send no key then, or a key made from the business data.
func (o *Operation) DownstreamKey(step string) string {
	if o.missing() || o.secret == nil {
		return ""
	}
	return o.secret.key(o.id, step)
}

// NotExecuted reports that nothing was done, whatever the handler answers: the record is released, and a retry
// executes.
func (o *Operation) NotExecuted() {
	if !o.missing() {
		o.end(endedNotExecuted)
	}
}

// Reject reports that the request is not valid and nothing was done: the answer, of 400 or more, is sent as the handler
// wrote it, no record is kept, and the corrected request may use the same key. It is for errors found in a request
// before anything is sent to another system, in every mode alike. If something may have been sent, by this attempt or
// an earlier one, Reject acts like NotExecuted, and a different request stays a mismatch: in an attempt that resumed,
// or has a recovery point, a carried value or a provider's id, and after an attempt whose outcome was unknown.
func (o *Operation) Reject() {
	if o.missing() {
		return
	}
	if o.outcome.Load() != endedNeverExecuted { // NeverExecuted is the stronger statement, and stays
		o.end(endedNotExecuted)
	}
	o.rejected.Store(true)
}

// rejects reports whether no record is to be kept: the request was rejected, and no attempt may have sent anything.
func (o *Operation) rejects() bool { return o.rejected.Load() && o.coversEarlier() && !o.mayHaveSent() }

// mayHaveSent reports whether this attempt, or an earlier one, left a trace of something that was sent elsewhere: see
// [store.Record.MayHaveSent].
func (o *Operation) mayHaveSent() bool {
	return o.sent || o.recorded.Load() || o.dataUse.Load() == dataCarried || o.providerID.Load() != nil
}

// coversEarlier reports whether "nothing was done" also holds for the earlier attempts. A resumed attempt knows this
// only if the earlier attempts left no trace; a carried value means that their call may have been sent.
func (o *Operation) coversEarlier() bool {
	return !o.resumed || o.outcome.Load() == endedNeverExecuted && !carries(o.data)
}

// Unknown reports that it is not known what was done, whatever the handler answers: retries are answered with 409 until
// the outcome has been settled. In a transactional handler it undoes the transaction, so that nothing was done.
func (o *Operation) Unknown() {
	if !o.missing() {
		o.end(endedUnknown)
	}
}

// SetReason sets the record's last error if the outcome is unknown or nothing was executed, for the operator who has to
// settle it. A long text is cut after 1,000 bytes.
func (o *Operation) SetReason(reason string) {
	if !o.missing() {
		reason = cutReason(reason)
		o.reason.Store(&reason)
	}
}

// maxReason bounds the text of an error that is kept as a reason, in bytes.
const maxReason = 1000

// HandlerFailed records the error that a handler returned. It is for adapters of frameworks whose handlers return
// errors. The text of the error is logged, and becomes the reason of the outcome unless the handler has called
// [Operation.SetReason]; the guard sends it to no client. An HTTP answer that does not show the error, because its
// status is less than 400, or because there is no answer, has the same outcome as a 5xx, and is not sent.
func (o *Operation) HandlerFailed(err error) {
	if o == nil || err == nil {
		return
	}
	reason := cutReason(err.Error())
	o.failure.Store(&reason)
}

// cutReason returns the text of an error as it is logged and kept: valid UTF-8 of a bounded length, in its own memory,
// because the text may lie in memory that is reused.
func cutReason(text string) string {
	const mark = " …"
	reason := strings.ToValidUTF8(text, "\uFFFD")
	if len(reason) > maxReason {
		return strings.ToValidUTF8(reason[:maxReason-len(mark)], "") + mark
	}
	return strings.Clone(reason)
}

// hidesFailure reports whether the handler returned an error that an answer of this status does not show.
func (o *Operation) hidesFailure(status int) bool {
	return o.failure.Load() != nil && status < http.StatusBadRequest
}

// logFailure logs the error of a handler that failed in its last run: a transaction may run several times. An error
// that was answered with a refusal, a 4xx, is not logged. An unknown outcome is logged elsewhere, with the error as its
// reason.
func (e *execution) logFailure() {
	refused := e.endedStatus >= http.StatusBadRequest && e.endedStatus < http.StatusInternalServerError
	if reason := e.op.failure.Load(); reason != nil && e.ended != outcomeUnknown && !refused {
		e.logError("onceward: the handler failed", errors.New(*reason))
	}
}

// reasonOr returns the reason that the handler set; without one, the error that the handler returned; and without both,
// the text.
func (o *Operation) reasonOr(text string) string {
	if reason := o.reason.Load(); reason != nil {
		return *reason
	}
	if failure := o.failure.Load(); failure != nil {
		return *failure
	}
	return text
}

func (o *Operation) end(word uint32) {
	o.rejected.Store(false)
	o.outcome.Store(word)
}

// missed holds the lines of code that [Operation.missing] has logged. On a route with [KeyOptional] clients decide how
// often a handler runs without an operation, so each line is logged once in a process.
var missed sync.Map

// missing reports whether there is no operation, and then logs the line of the handler that called the method.
func (o *Operation) missing() bool {
	if o != nil {
		return false
	}
	caller := "unknown"
	if _, file, line, ok := runtime.Caller(2); ok {
		caller = file + ":" + strconv.Itoa(line)
	}
	if _, logged := missed.LoadOrStore(caller, true); !logged {
		slog.Error("onceward: a call on no operation has no effect: the request came without its optional key, or the context is "+
			"not that of a protected request; this is logged once for each line", "caller", caller)
	}
	return true
}

// KeepWrites keeps a transactional handler's writes although it answers 4xx. It has no effect on answers that mean that
// nothing was done: 401, 408, 425 and 429 are released and undo everything, as [Operation.Reject] does.
func (o *Operation) KeepWrites() {
	if !o.missing() {
		o.keepWrites.Store(true)
	}
}

// Retain keeps the answer for at least this long, if it is longer than the route's retention, and at most
// [MaxRetention].
func (o *Operation) Retain(d time.Duration) {
	if !o.missing() {
		o.retention.Store(int64(min(d, MaxRetention)))
	}
}

// ProviderID returns the id that this attempt last set with [Operation.SetProviderID]; empty if it has set none.
func (o *Operation) ProviderID() string {
	if o == nil || o.providerID.Load() == nil {
		return ""
	}
	return *o.providerID.Load()
}

// SetProviderID records the id that another system gave to the effect. The record can be found by it later.
func (o *Operation) SetProviderID(id string) {
	if !o.missing() {
		id = strings.Clone(id)
		o.providerID.Store(&id)
	}
}

// CheckLease returns an error that wraps [ErrLeaseLost] if the attempt no longer holds its lease. Call it before each
// effect. The lease counts from the moment the last successful heartbeat was sent, by this node's clock.
func (o *Operation) CheckLease() error {
	if o == nil || o.lease == nil {
		return nil
	}
	if until, held := o.lease.held(clock()); !held {
		return fmt.Errorf("%w: it counted until %s", ErrLeaseLost, until.Format(time.RFC3339Nano))
	}
	return nil
}

// restart resets the values that an earlier run, which was undone, has set.
func (o *Operation) restart() {
	o.parts.Reset()
	o.end(endedAsWritten)
	o.keepWrites.Store(false)
	o.tookTx.Store(false)
	o.retention.Store(0)
	o.providerID.Store(nil)
	o.reason.Store(nil)
	o.reference.Store(nil)
	o.failure.Store(nil)
}

// completion returns an answer with the settings of the handler.
func (o *Operation) completion(response store.Response) store.Completion {
	done := store.Completion{Response: response, Retention: time.Duration(o.retention.Load())}
	if id := o.providerID.Load(); id != nil {
		done.ProviderID = *id
	}
	return done
}

// Tx returns the transaction of a transactional handler, which already contains the claim. The handler's writes in it
// become durable together with its answer, or not at all. The guard commits it or rolls it back: its own Commit and
// Rollback return [ErrTxOwned]. With pgx the function is postgres.Tx.
//
// It panics if the context has no *sql.Tx, because the route is not [Transactional] or its store provides another type:
// writing outside the transaction would silently lose the guarantee. [LookupTx] does not panic.
func Tx(ctx context.Context) *sql.Tx {
	tx, ok := LookupTx(ctx)
	if !ok {
		panic("onceward: no *sql.Tx in this context: " +
			"is the route built with onceward.Transactional() on a database/sql store, " +
			"is its method one that is protected (POST and PATCH, unless onceward.Methods says otherwise), " +
			"and is the context the handler's own?")
	}
	return tx
}

// LookupTx returns the transaction of a transactional handler, if there is one.
func LookupTx(ctx context.Context) (*sql.Tx, bool) { return store.LookupTx(ctx) }
