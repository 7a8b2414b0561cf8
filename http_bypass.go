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

// routersPage shows how each router hands the guard's ResponseWriter on.
const routersPage = "https://github.com/onceward/onceward/blob/main/docs/routers.md"

// inspect looks for signs that a handler which wrote nothing to the recorder answered past it: to the writer of a
// framework, which is the recorder's real one, as a wrapper does that does not hand the recorder on. The client has
// such an answer whatever happens here. It cannot be stored, and an empty one in its place would be a lie.
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
		x.tell(mistakeNotRerun)
	case past, x.bypassed, untouched && rec.realHeaderChanged():
		x.wrote, x.bypassed = true, true
		rec.status, rec.bypassed = status, true
		x.observeBypass(status, false)
		x.tell(mistakeBypass, "status", status, "writer", fmt.Sprintf("%T", rec.real))
	case untouched && inOrder:
		x.tell(mistakeNoAnswer)
	}
}

// untouched reports whether the handler left the recorder as it was. It is asked where no status was written. The
// header is read only of a handler that ended in order: what another left behind may be writing to it.
func (rec *recorder) untouched(inOrder bool) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return !rec.asked.Load() || inOrder && maps.EqualFunc(rec.header, rec.before, slices.Equal)
}

// realHeaderChanged reports whether the header of the real writer is not what it was before the handler.
func (rec *recorder) realHeaderChanged() bool {
	return !maps.EqualFunc(rec.real.Header(), rec.before, slices.Equal)
}

// shownBy asks a writer, and those inside of it, whether an answer was given to it, by the methods that frameworks
// share. The status is 0 if it does not show. Status alone tells nothing if it is 0 or 200, which stand for none yet.
// That of net/http itself shows nothing.
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

// finalStatus is a status that ends an answer, or 0 for any other number.
func finalStatus(status int) int {
	if status < http.StatusOK || status > 999 {
		return 0
	}
	return status
}

// fieldOf is a field of the struct that a writer points at, if it has one of that name and kind.
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

// bypassedOutcome is that of an answer whose status cannot be seen. Whether the handler failed is not known then, and
// is not guessed. A transaction is committed: most handlers succeed, and a client that was told so must not find its
// work undone.
func (x *httpExecution) bypassedOutcome() (outcome, bool) {
	if !x.recorder.bypassed || x.recorder.status != 0 || x.settings.mode == modeTransactional {
		return outcome{}, false
	}
	reason := "the handler answered past the guard, and its status cannot be seen"
	return outcome{kind: outcomeUnknown, reason: reason}, true
}

var errAnsweredOtherwise = errors.New("the attempt did not end as the client was told")

// endBypassed ends a request whose client has an answer. Nothing is sent after it; if it says more than became true, an
// operator is told each time.
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
	x.tell(mistakeLate, "status", status)
}

func (x *httpExecution) observeBypass(status int, late bool) {
	if x.guard.config.Observer != nil {
		x.guard.observe(x.base, BypassedEvent{
			ID: x.reservation.ID, Operation: x.op.name, Status: status, Late: late,
		})
	}
}

// mistake is one that a route makes at each request, and that is logged once.
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

// mistakes holds what is logged of each mistake: what happens, and its remedy.
var mistakes = [...]struct{ message, remedy string }{
	mistakeBypass: {
		"onceward: the handler answered past the guard: its answer was sent before it could be stored, " +
			"and retries do not get it",
		"let the framework write through the ResponseWriter that the guard hands to the handler, " +
			"and run the handler nowhere else, also not after the guard has answered (gin: c.Abort()): " + routersPage,
	},
	mistakeLate: {
		"onceward: the answer came after the handler had returned: an empty 200 was stored and sent in its place",
		"write the answer before the handler returns, also that to an error which it returns to its framework: " +
			routersPage,
	},
	mistakeNotRerun: {
		"onceward: the database undid the transaction, and the handler did not run again: nothing was executed",
		"call the handler itself inside of the guard, not a chain that runs once, such as gin's c.Next: " + routersPage,
	},
	mistakeNoAnswer: {
		"onceward: the handler wrote no answer: an empty 200 is stored",
		"call w.WriteHeader if that is meant; if it did answer, that went past the guard: " + routersPage,
	},
	mistakeNoBody: {
		"onceward: a request without an announced length came with an empty body: if something in front of the guard read " +
			"the body, different requests look the same",
		"let nothing read the body in front of the guard: " + routersPage,
	},
	mistakeUnusedTx: {
		"onceward: a transactional handler was committed that never asked for its transaction: what it wrote went past the guard, " +
			"and stays when the transaction is undone",
		"nothing, if it writes nothing; else write through onceward.Tx, postgres.Tx, or a handle such as postgres.DB and mysql.DB: " +
			ormPage,
	},
	mistakeSecondConnection: {
		"onceward: a transactional handler asked the pool that holds its transaction for a second connection: enough such requests " +
			"at once wait for each other",
		"give the handler and its repositories postgres.DB(pool), which uses the transaction that is there: " + ormPage,
	},
}

const ormPage = "https://github.com/onceward/onceward/blob/main/docs/orm.md"

// tell logs a mistake of this route, once.
func (x *httpExecution) tell(m mistake, facts ...any) {
	if !x.guard.told.first(m, x.op.name) {
		return
	}
	facts = append([]any{"operation", x.op.name, "key_hash", x.reservation.ID.Hash()}, facts...)
	facts = append(facts, "remedy", mistakes[m].remedy)
	if m == mistakeNoAnswer || m == mistakeNoBody { // it may be meant
		x.guard.config.Logger.WarnContext(x.base, mistakes[m].message, facts...)
		return
	}
	x.guard.config.Logger.ErrorContext(x.base, mistakes[m].message, facts...)
}

// toldMistakes remembers what was logged. It does so by the name of the operation: a wrapper may protect its handler
// again for each request.
type toldMistakes struct {
	mu   sync.Mutex
	told map[toldMistake]struct{}
}

type toldMistake struct {
	mistake
	operation string
}

// maxTold bounds the memory of names; past it nothing more is logged.
const maxTold = 1024

// first reports whether a mistake of an operation is to be logged now.
func (t *toldMistakes) first(m mistake, operation string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := toldMistake{m, operation}
	if _, known := t.told[key]; known || len(t.told) >= maxTold {
		return false
	}
	if t.told == nil {
		t.told = make(map[toldMistake]struct{})
	}
	t.told[key] = struct{}{}
	return true
}
