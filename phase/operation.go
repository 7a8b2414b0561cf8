// Package phase runs an operation as a list of named steps, each with a recovery point behind it. After a crash a later
// attempt goes on behind the last finished step, and does not repeat it (E3).
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
// A local step is a function that writes to the database through the transaction of its context; what it wrote, what it
// changed in the carried data, and its recovery point are committed together. On a store without transactions a local
// step that was interrupted runs again.
//
// An external step is one call to another system. That it is about to be made is recorded before, and its result after.
// It is handed a key that is the same in every attempt, to send along. If an attempt is lost in between, it is not
// known whether the call was made. The author of the step says what is to be done then: make it again with the same
// key, which the other system must recognise; look first; or, if nothing is said, stop as unknown, for a reconciler or
// a person. They settle the step, and the operation goes on behind it or at it: see [Operation.InDoubt] and [Inspect].
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
	// Name identifies the operation in stored records; on a route of http.ServeMux it is best the method and the
	// pattern. A resumer finds the operation by it. Required.
	Name string
	// Steps are done one after the other. Their names are stored, and a node leaves an operation alone whose steps it
	// does not know: see [*ChangedError]. Steps may be added at the end; for every other change raise the Version.
	// Required.
	Steps []Step[T]
	// Version is that of the steps and of the carried data, and is stored with them. A node goes on with what an older
	// version has stored, and leaves alone what a newer one has. Raise it when steps are changed other than by adding
	// some at the end, and when the data is changed other than by adding fields with omitempty. Default: 0.
	Version int
	// Migrate makes data of this Version out of that of an older one, before it is decoded. An error leaves the
	// operation to the nodes that know it. Default: the data is decoded as it is.
	Migrate func(from int, data json.RawMessage) (json.RawMessage, error)
	// LenientData decodes carried data as encoding/json does: a field that the type does not have is dropped, and one
	// that the data does not have is zero. Default: both are errors, which leave the operation to the nodes that know
	// it, but for fields with omitempty or omitzero, and for pointers.
	LenientData bool
	// Answer makes the answer when all steps are done. Required.
	Answer func(data *T) Answer
	// Options are those of the route: [onceward.Lease], [onceward.Deadline], [onceward.Retain] and so on. That the
	// route is reserved and resumes, and its name, is not for them to change. Default: those of the guard.
	Options []onceward.Option
	// MaxData is the most bytes that the carried data may take as JSON. Default: 64 KiB.
	MaxData int
	// MaxAttempts is how often a step is attempted before the operation is given up as unknown. Default: 10.
	MaxAttempts int
	// MinBackoff is the time before the second attempt; it doubles with each one, up to a minute, and is a minute at
	// most. Default: 1 s.
	MinBackoff time.Duration
}

// The defaults and limits of a definition.
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

// options are those of the route, and those of the engine: an attempt whose owner is lost is taken over. An error by
// which a step of [Operation.Do] rejects the operation is stored; of every other end the guard is told otherwise.
func (o *Operation[T]) options(via string) []onceward.Option {
	failure := onceward.FailureUnknown
	if via == viaDo {
		failure = onceward.FailureStore
	}
	return append(slices.Clone(o.Options),
		onceward.Reserved(failure), onceward.OnLost(store.LostResume), onceward.OperationName(o.Name))
}

// Handler protects a route that runs the operation. The function start makes the data from the request, once, and is
// the place to validate it: an error rejects the request, as [onceward.Operation.Reject] does, with 400 and its text.
// To reject it with another answer, start returns onceward.Rejected(phase.Finish(answer)); an error of [Finish] alone
// is an answer that is kept. It panics, as [onceward.Guard.Handler] does, if the options cannot be right.
func (o *Operation[T]) Handler(guard *onceward.Guard, start func(r *http.Request) (*T, error)) http.Handler {
	return guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.serve(w, r, func() (*T, error) { return start(r) })
	}, o.options(viaHTTP)...)
}

// serve runs the operation for a guard that records what is written.
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
		return // the guard was told how the attempt ended, and says so
	}
	answer.write(w)
}

// Do runs the operation for a call that is not an HTTP request; its Operation is the operation's name. By the Payload
// of the call, not by the data, is a key recognised that comes back for something else. It returns the body of the
// answer, now or from an earlier attempt; a status is not kept. Errors are those of [onceward.Guard.Do];
// [onceward.ErrInProgress] also says that the operation was suspended and will go on.
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

// errLostBeforeStart is the start of an operation that is resumed without its caller: there is nothing to start from.
var errLostBeforeStart = errors.New("phase: the operation was lost before its first recovery point; nothing was done")

// resume implements [Resumable]. What another version of the program has stored it leaves alone, with a
// [*ChangedError]: it does not even take the right to execute, which a node that knows the operation may want at the
// same moment.
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
