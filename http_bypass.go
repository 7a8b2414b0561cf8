package onceward

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"
)

// routersPage documents how the guard's ResponseWriter reaches the handler in each router.
const routersPage = "https://github.com/onceward/onceward/blob/main/docs/routers.md"

// inspect looks for signs that a handler that wrote nothing to the recorder wrote its answer past the recorder: to the
// framework's writer, which is the recorder's real writer, if a wrapper does not pass the recorder on. The client gets
// such an answer in any case. The answer cannot be stored, and storing an empty answer in its place would be wrong.
func (x *httpExecution) inspect(ctx context.Context, op *Operation) {
	rec := x.recorder
	if rec.status != 0 || x.panicked != nil {
		x.wrote = x.wrote || rec.status != 0
		return
	}
	inOrder := op.outcome.Load() == endedAsWritten && ctx.Err() == nil
	untouched := rec.untouched(inOrder)
	status, past := shownBy(rec.real)
	switch {
	case x.wrote && !x.body.wasRead() && !op.tookTx.Load():
		x.notRerun = true
		x.logMistake(mistakeNotRerun)
	case past, x.bypassed, untouched && rec.realHeaderChanged():
		x.wrote, x.bypassed = true, true
		rec.status, rec.bypassed = status, true
		x.observeBypass(status, false)
		x.logMistake(mistakeBypass, "status", status, "writer", fmt.Sprintf("%T", rec.real))
	case untouched && inOrder:
		x.logMistake(mistakeNoAnswer)
	}
}

// untouched reports whether the handler left the recorder unchanged. It is called if no status was written. It reads
// the header only if the handler ended in order: otherwise a goroutine of the handler may still write to it.
func (rec *recorder) untouched(inOrder bool) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return !rec.accessed.Load() || inOrder && maps.EqualFunc(rec.header, rec.before, slices.Equal)
}

// realHeaderChanged reports whether the header of the real writer has changed since the handler started.
func (rec *recorder) realHeaderChanged() bool {
	return !maps.EqualFunc(rec.real.Header(), rec.before, slices.Equal)
}

// shownBy checks whether an answer was written to a writer, or to a writer that it wraps, by the methods that
// frameworks share. The status is 0 if it is not visible. A Status of 0 or 200 alone proves nothing, because both also
// stand for no answer yet. The writer of net/http does not show this.
func shownBy(w http.ResponseWriter) (status int, written bool) {
	for {
		status = 0
		if shows, ok := w.(interface{ Status() int }); ok {
			status = shows.Status()
			written = status > http.StatusOK
		}
		if shows, ok := w.(interface{ Written() bool }); ok { // gin, negroni
			written = written || shows.Written()
		}
		if shows, ok := w.(interface{ Size() int }); ok { // gorilla/handlers
			written = written || shows.Size() > 0
		}
		if shows, ok := w.(interface{ BytesWritten() int }); ok { // chi
			written = written || shows.BytesWritten() > 0
		}
		if committed, ok := fieldOf(w, "Committed", reflect.Bool); ok && committed.Bool() { // echo
			written = true
			if code, ok := fieldOf(w, "Status", reflect.Int); ok {
				status = int(code.Int())
			}
		}
		if written {
			return finalStatus(status), true
		}
		wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return 0, false
		}
		w = wrapper.Unwrap()
	}
}

// finalStatus returns a status that ends an answer, or 0 for any other number.
func finalStatus(status int) int {
	if status < http.StatusOK || status > 999 {
		return 0
	}
	return status
}

// fieldOf returns a field of the struct that a writer points to, if the struct has a field of that name and kind.
func fieldOf(w http.ResponseWriter, name string, kind reflect.Kind) (reflect.Value, bool) {
	v := reflect.Indirect(reflect.ValueOf(w))
	if v.Kind() != reflect.Struct {
		return v, false
	}
	field, ok := v.Type().FieldByName(name)
	if !ok || len(field.Index) != 1 || field.Type.Kind() != kind {
		return v, false
	}
	return v.FieldByIndex(field.Index), true
}

// bypassedOutcome returns the outcome of an answer whose status cannot be seen. It is then not known whether the
// handler failed, and the outcome is unknown. A transaction is committed: most handlers succeed, and a client that got
// a success must not find its work undone.
func (x *httpExecution) bypassedOutcome() (outcome, bool) {
	if !x.recorder.bypassed || x.recorder.status != 0 || x.settings.mode == modeTransactional {
		return outcome{}, false
	}
	reason := "the handler answered past the guard, and its status cannot be seen"
	return outcome{kind: outcomeUnknown, reason: reason}, true
}

var errAnsweredOtherwise = errors.New("the attempt did not end as the client's answer claims")

// endBypassed ends a request whose client already has an answer. Nothing more is sent; if the answer claims more than
// was stored, an error is logged each time.
func (x *httpExecution) endBypassed(res *result) {
	if res.kind == resultAnswer || x.recorder.status >= http.StatusBadRequest {
		return
	}
	err := res.err
	if err == nil {
		err = errAnsweredOtherwise
	}
	x.logError("onceward: the client was answered past the guard, before the outcome was durable", err)
}

// wroteLate implements [lateListener].
func (x *httpExecution) wroteLate(status int) {
	x.observeBypass(status, true)
	x.logMistake(mistakeLate, "status", status)
}

func (x *httpExecution) observeBypass(status int, late bool) {
	if x.guard.config.Observer != nil {
		x.guard.observe(x.base, BypassedEvent{
			ID: x.reservation.ID, Operation: x.op.name, Status: status, Late: late,
		})
	}
}

// mistake is a programming mistake that a route repeats with each request, and that is logged once.
type mistake uint8

const (
	mistakeBypass mistake = iota
	mistakeLate
	mistakeNotRerun
	mistakeNoAnswer
	mistakeNoBody
	mistakeUnusedTx
	mistakeSecondConnection
)

// mistakes holds the log line and the remedy of each mistake.
var mistakes = [...]struct{ message, remedy string }{
	mistakeBypass: {
		"onceward: the handler answered past the guard: its answer was sent before it could be stored, " +
			"and retries do not get it",
		"let the framework write through the ResponseWriter that the guard passes to the handler, " +
			"and run the handler nowhere else, also not after the guard has answered (gin: c.Abort()): " + routersPage,
	},
	mistakeLate: {
		"onceward: the answer came after the handler had returned: an empty 200 was stored and sent in its place",
		"write the answer before the handler returns, also the answer to an error that it returns to its framework: " +
			routersPage,
	},
	mistakeNotRerun: {
		"onceward: the database undid the transaction, and the handler did not run again: nothing was executed",
		"call the handler itself inside of the guard, not a chain that runs once, such as gin's c.Next: " + routersPage,
	},
	mistakeNoAnswer: {
		"onceward: the handler wrote no answer: an empty 200 is stored",
		"call w.WriteHeader if this is intended; if the handler did answer, the answer went past the guard: " + routersPage,
	},
	mistakeNoBody: {
		"onceward: a request without an announced length has an empty body: if something in front of the guard read " +
			"the body, different requests look the same",
		"do not read the body in front of the guard: " + routersPage,
	},
	mistakeUnusedTx: {
		"onceward: a transactional handler that never asked for its transaction was committed: its writes went past " +
			"the guard, and stay when the transaction is undone",
		"none if the handler writes nothing; else write through onceward.Tx, postgres.Tx, or a handle such as postgres.DB: " +
			ormPage,
	},
	mistakeSecondConnection: {
		"onceward: a transactional handler asked the pool that holds its transaction for a second connection: enough such " +
			"requests at once wait for each other",
		"give the handler and its repositories postgres.DB(pool), which uses the transaction of the context: " + ormPage,
	},
}

const ormPage = "https://github.com/onceward/onceward/blob/main/docs/orm.md"

// logMistake logs a mistake of this route, once.
func (x *httpExecution) logMistake(m mistake, facts ...any) {
	if !x.guard.logged.first(m, x.op.name) {
		return
	}
	facts = append([]any{"operation", x.op.name, "key_hash", x.reservation.ID.Hash()}, facts...)
	facts = append(facts, "remedy", mistakes[m].remedy)
	if m == mistakeNoAnswer || m == mistakeNoBody { // may be intended
		x.guard.config.Logger.WarnContext(x.base, mistakes[m].message, facts...)
		return
	}
	x.guard.config.Logger.ErrorContext(x.base, mistakes[m].message, facts...)
}

// loggedMistakes remembers which mistakes were logged. It uses the name of the operation, because a wrapper may make a
// new protected handler for each request.
type loggedMistakes struct {
	mu     sync.Mutex
	logged map[loggedMistake]struct{}
}

type loggedMistake struct {
	mistake
	operation string
}

// maxLogged bounds the memory of names; beyond it no further mistake is logged.
const maxLogged = 1024

// first reports whether a mistake of an operation is to be logged now.
func (t *loggedMistakes) first(m mistake, operation string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := loggedMistake{m, operation}
	if _, known := t.logged[key]; known || len(t.logged) >= maxLogged {
		return false
	}
	if t.logged == nil {
		t.logged = make(map[loggedMistake]struct{})
	}
	t.logged[key] = struct{}{}
	return true
}
