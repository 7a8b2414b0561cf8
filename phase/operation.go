// Package phase runs an operation as a list of named steps, each followed by a recovery point. After a crash a later
// attempt continues after the last finished step, and does not repeat it (rule E3).
//
//	var book = phase.Must(phase.New(phase.Definition[Booking]{
//		Name: "POST /bookings",
//		Steps: []phase.Step[Booking]{
//			phase.Local("hold the seat", holdSeat),
//			phase.External("charge", charge).Repeat(),
//			phase.Local("confirm", confirm),
//		},
//		Answer: func(b *Booking) phase.Answer { return phase.JSON(http.StatusCreated, b) },
//	}))
//
//	mux.Handle("POST /bookings", book.Handler(guard, readBooking))
//	resumer, err := phase.NewResumer(guard, store, phase.ResumerConfig{Operations: []phase.Resumable{book}})
//	err = onceward.Run(ctx, resumer, guard.Server(server, listener, grace))
//
// A local step is a function that writes to the database through the transaction of its context; its writes, its
// changes to the carried data, and its recovery point are committed together. On a store without transactions an
// interrupted local step runs again.
//
// An external step is one call to another system. The intent is recorded before the call, and the result after it. The
// call gets a key to send, which is the same in every attempt. If an attempt is lost in between, it is not known
// whether the call was made. The author of the step chooses what happens then: repeat the call with the same key, which
// the other system must recognise; look it up first; or, by default, stop as unknown, for a reconciler or a person.
// They settle the step, and the operation continues after it or at it: see [Operation.InDoubt] and [Inspect].
//
// The carried data is all that a later attempt has: it is stored as JSON, and the steps see nothing else of the
// request. It is decoded strictly, and a node leaves an operation alone whose steps or data it does not know: see
// [Definition] and [*ChangedError].
package phase

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// Definition describes an operation.
type Definition[T any] struct {
	// Name identifies the operation in stored records; on a route of http.ServeMux use the method and the pattern. A
	// resumer finds the operation by it. Required.
	Name string
	// Steps are run one after the other. Their names are stored, and a node leaves an operation alone whose steps it does
	// not know: see [*ChangedError]. Steps may be added at the end; for every other change raise the Version. Required.
	Steps []Step[T]
	// Version is the version of the steps and of the carried data, and is stored with them. A node continues operations of
	// an older version, and leaves operations of a newer one alone. Raise it when steps are changed other than by adding
	// some at the end, and when the data is changed other than by adding fields with omitempty. Default: 0.
	Version int
	// Migrate converts data of an older version to this Version, before it is decoded. An error leaves the operation to
	// the nodes that know it. Default: the data is decoded as it is.
	Migrate func(from int, data json.RawMessage) (json.RawMessage, error)
	// LenientData decodes carried data as encoding/json does: unknown fields are dropped, and missing fields are zero.
	// Default: both are errors, which leave the operation to the nodes that know it, except for missing fields with
	// omitempty or omitzero, and for pointers.
	LenientData bool
	// Answer makes the answer when all steps are done. Required.
	Answer func(data *T) Answer
	// Options are the options of the route: [onceward.Lease], [onceward.Deadline], [onceward.Retain] and so on. They
	// cannot change that the route is reserved and resumes, nor its name. Default: the guard's defaults.
	Options []onceward.Option
	// MaxData is the largest size of the carried data as JSON, in bytes. Default: 64 KiB.
	MaxData int
	// MaxAttempts is how often a step is attempted before the operation is given up as unknown. Default: 10.
	MaxAttempts int
	// MinBackoff is the pause before the second attempt; it doubles with each one, up to a minute. It is at most a minute.
	// Default: 1 s.
	MinBackoff time.Duration
}

// These are the defaults and limits of a definition.
const (
	defaultMaxData     = 64 << 10
	defaultMaxAttempts = 10
	defaultMinBackoff  = time.Second
	maxBackoff         = time.Minute
)

// Operation is a defined operation. It holds no state and may be shared.
type Operation[T any] struct {
	Definition[T]
	names []string
}

// New checks a definition.
func New[T any](d Definition[T]) (*Operation[T], error) {
	if d.Name == "" || d.Answer == nil || len(d.Steps) == 0 {
		return nil, errors.New("phase: a definition needs a name, steps and an answer")
	}
	o := &Operation[T]{Definition: d}
	for i := range d.Steps {
		s := &d.Steps[i]
		if err := s.check(); err != nil {
			return nil, err
		}
		if slices.Contains(o.names, s.name) {
			return nil, fmt.Errorf("phase: two steps of %q are called %q: a recovery point must name one", d.Name, s.name)
		}
		o.names = append(o.names, s.name)
	}
	if d.MaxData < 0 || d.MaxAttempts < 0 || d.MinBackoff < 0 || d.Version < 0 {
		return nil, fmt.Errorf("phase: MaxData, MaxAttempts, MinBackoff and Version of %q cannot be negative", d.Name)
	}
	if d.MinBackoff > maxBackoff {
		return nil, fmt.Errorf("phase: a MinBackoff of %s for %q: the most is %s", d.MinBackoff, d.Name, maxBackoff)
	}
	o.setDefaults()
	return o, nil
}

func (o *Operation[T]) setDefaults() {
	if o.MaxData == 0 {
		o.MaxData = defaultMaxData
	}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = defaultMaxAttempts
	}
	if o.MinBackoff == 0 {
		o.MinBackoff = defaultMinBackoff
	}
}

// Must returns the operation, or panics with the error: for definitions in variables.
func Must[T any](o *Operation[T], err error) *Operation[T] {
	if err != nil {
		panic(err)
	}
	return o
}

// options returns the options of the route, and of the engine: an attempt whose owner is lost is taken over. An error
// by which a step of [Operation.Do] rejects the operation is stored; every other end sets its own outcome.
func (o *Operation[T]) options(via string) []onceward.Option {
	failure := onceward.FailureUnknown
	if via == viaDo {
		failure = onceward.FailureStore
	}
	return append(slices.Clone(o.Options),
		onceward.Reserved(failure), onceward.OnLost(store.LostResume), onceward.OperationName(o.Name))
}

// Handler protects a route that runs the operation. The function start makes the data from the request, once, and
// should validate it: an error rejects the request, as [onceward.Operation.Reject] does, with 400 and its text. To
// reject it with another answer, start returns onceward.Rejected(phase.Finish(answer)); an error of [Finish] alone is
// an answer that is kept. It panics, as [onceward.Guard.Handler] does, if the options are wrong.
func (o *Operation[T]) Handler(guard *onceward.Guard, start func(r *http.Request) (*T, error)) http.Handler {
	return guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.serve(w, r, func() (*T, error) { return start(r) })
	}, o.options(viaHTTP)...)
}

// serve runs the operation for a guard that records the answer.
func (o *Operation[T]) serve(w http.ResponseWriter, r *http.Request, start func() (*T, error)) {
	op := onceward.FromContext(r.Context())
	if op == nil {
		(&onceward.Problem{
			Status: http.StatusBadRequest, Code: "missing-key", Title: "Idempotency-Key is missing",
			Detail: "this operation needs an idempotency key",
		}).Write(w)
		return
	}
	answer, err := o.run(r.Context(), op, viaHTTP, start)
	if err != nil {
		return // the attempt's outcome is set, and the guard answers
	}
	answer.write(w)
}

// Do runs the operation for a call that is not an HTTP request; its Operation is the operation's name. A key that was
// used for something else is recognised by the Payload of the call, not by the data. Do returns the body of the answer,
// from this attempt or an earlier one; a status is not kept. The errors are the errors of [onceward.Guard.Do];
// [onceward.ErrInProgress] also means that the operation was suspended and will continue.
func (o *Operation[T]) Do(
	ctx context.Context, guard *onceward.Guard, call onceward.Call, data T,
) (onceward.Result, error) {
	call.Operation = o.Name
	return guard.Do(ctx, call, func(ctx context.Context) ([]byte, error) {
		return o.value(ctx, func() (*T, error) { return &data, nil })
	}, o.options(viaDo)...)
}

// value runs the operation for a guard that stores a value.
func (o *Operation[T]) value(ctx context.Context, start func() (*T, error)) ([]byte, error) {
	answer, err := o.run(ctx, onceward.FromContext(ctx), viaDo, start)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// errLostBeforeStart is the error for an operation that was lost before its first recovery point and is resumed without
// its caller: there is no data to start from.
var errLostBeforeStart = errors.New("phase: the operation was lost before its first recovery point; nothing was done")

// resume implements [Resumable]. It leaves an operation of another version of the program alone, with a
// [*ChangedError]: it does not even take the right to execute, because a node that knows the operation may need it at
// the same moment.
func (o *Operation[T]) resume(ctx context.Context, guard *onceward.Guard, rec *store.Record) error {
	none := func() (*T, error) { return nil, errLostBeforeStart }
	var state envelope
	if rec.Point != "" {
		var err error
		if state, err = o.read(rec.Data); err != nil {
			return err
		}
	}
	if state.Via == viaDo {
		_, err := guard.Resume(ctx, rec, func(ctx context.Context) ([]byte, error) {
			return o.value(ctx, none)
		}, o.options(viaDo)...)
		return err
	}
	return guard.ResumeHandler(ctx, rec, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.serve(w, r, none)
	}), o.options(viaHTTP)...)
}

func (o *Operation[T]) operationName() string { return o.Name }
