package onceward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/store"
)

// recorder is the ResponseWriter that a protected handler writes to. It keeps the answer until the answer is stored;
// nothing is sent before (rule E7). It does not unwrap to the real writer, and is not an io.ReaderFrom, so that nothing
// bypasses it.
type recorder struct {
	real     http.ResponseWriter
	settings *settings
	ctx      context.Context // the context of the handler
	stream   streamMarker    // nil where answers cannot stream
	op       *Operation      // the operation of the writing handler, if any
	late     lateListener    // is called for a first answer after the end

	// A goroutine of the handler may continue to write. The lock, and the end of writing when the handler ends, prevent
	// it from changing an answer that is being settled, or memory that is reused.
	mu        sync.Mutex
	sending   bool      // a goroutine uses the real writer, without the lock
	idle      sync.Cond // sending has ended
	flush     bool      // the bytes written while sending are to be flushed
	ended     bool
	head      bool        // a request by HEAD, whose answer has no body
	before    http.Header // the real header when the handler started; nil if empty
	header    http.Header // never replaced after the handler has started, because it is read without the lock
	accessed  atomic.Bool // the header was accessed
	fields    []store.HeaderField
	announced []string    // the names of announced trailers
	trailers  http.Header // in the form of net/http, set after the body
	stored    int
	sent      [8]string // the values of the real header, if they are few
	status    int
	inTime    bool  // the answer began before the deadline of the handler
	length    int64 // the length of the body that the handler announced; negative for none
	written   int64
	body      []byte
	streaming bool
	bypassed  bool // the handler answered past the recorder, with the status if it is known
	noAnswer  bool // an empty answer replaces a missing one, and no late answer was reported
	overflow  bool
	broken    error // marking failed: nothing more may be sent
}

// streamMarker records durably that an answer is about to be sent without being stored.
type streamMarker interface{ markStreaming() error }

// lateListener is called when a handler that wrote no answer writes one after it has ended.
type lateListener interface{ wroteLate(status int) }

var (
	_ http.ResponseWriter = (*recorder)(nil)
	_ http.Flusher        = (*recorder)(nil)
	_ io.StringWriter     = (*recorder)(nil)
)

// errTooLarge is the error of a write in a transactional handler whose answer exceeds the limit.
var errTooLarge = errors.New("onceward: the response is larger than the route's ResponseLimit")

// errUnsent is the error of a write that would buffer too much while another part of the answer is being sent.
var errUnsent = errors.New("onceward: more than the route's ResponseLimit was written while a part was being sent")

// start makes the recorder ready for a handler with this context. It is used for one run.
func (rec *recorder) start(ctx context.Context) {
	rec.ctx, rec.length, rec.idle.L = ctx, -1, &rec.mu
	rec.header = make(http.Header)
	if outer := rec.real.Header(); len(outer) > 0 {
		rec.before = outer.Clone()
		maps.Copy(rec.header, outer.Clone())
	}
}

// Header implements [http.ResponseWriter]. As with net/http, changes after WriteHeader have no effect. It takes no
// lock: a hook of the writer in front may call Header while the recorder writes to that writer.
func (rec *recorder) Header() http.Header {
	rec.accessed.Store(true)
	return rec.header
}

// WriteHeader implements [http.ResponseWriter].
func (rec *recorder) WriteHeader(status int) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.ended {
		rec.noteLate(status)
		return
	}
	rec.writeHeader(status)
}

func (rec *recorder) writeHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("onceward: invalid WriteHeader code %d", status))
	case rec.status != 0:
		return
	case status < 200 && status != http.StatusSwitchingProtocols:
		if !rec.sending {
			rec.callOut(func() { rec.inform(status) })
		}
		return
	}
	rec.status = status
	rec.inTime = rec.ctx.Err() == nil
	if length, err := strconv.ParseInt(rec.header.Get("Content-Length"), 10, 64); err == nil {
		rec.length = length
	}
	rec.announced = rec.header["Trailer"]
	rec.fields, rec.stored = rec.settings.headers.fields(rec.before, rec.header)
}

// inform sends an informational answer with the current header. It is never stored (rule A3). Headers that a hook in
// front adds are kept for the final answer.
func (rec *recorder) inform(status int) {
	h := rec.real.Header()
	maps.Copy(h, rec.header)
	rec.real.WriteHeader(status)
	for name := range rec.header {
		delete(h, name)
	}
	maps.Copy(h, rec.before)
}

// Write implements [http.ResponseWriter].
func (rec *recorder) Write(p []byte) (int, error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if err := rec.admit(len(p)); err != nil {
		return 0, err
	}
	if rec.streaming && !rec.sending {
		// A client that leaves does not end the work (rule E6): the handler gets no error.
		rec.callOut(func() { _, _ = rec.real.Write(p) })
		return len(p), nil
	}
	rec.body = append(rec.body, p...)
	return len(p), nil
}

// WriteString implements [io.StringWriter].
func (rec *recorder) WriteString(s string) (int, error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if err := rec.admit(len(s)); err != nil {
		return 0, err
	}
	if rec.streaming && !rec.sending {
		rec.callOut(func() { _, _ = io.WriteString(rec.real, s) }) // as in Write
		return len(s), nil
	}
	rec.body = append(rec.body, s...)
	return len(s), nil
}

// callOut calls a function that uses the real writer, without the lock: a hook of a writer in front may use this
// recorder, even in another goroutine. No other goroutine calls out until the function has returned and the bytes
// written in the meantime are sent.
func (rec *recorder) callOut(f func()) {
	rec.sending = true
	defer func() {
		rec.sending = false
		rec.idle.Broadcast()
	}()
	rec.unlocked(f)
	for rec.streaming && len(rec.body) > 0 {
		body, flush := rec.takeBody(), rec.flush
		rec.flush = false
		rec.unlocked(func() {
			_, _ = rec.real.Write(body) // as in Write
			if flush {
				rec.flushReal()
			}
		})
	}
}

// unlocked calls a function without the lock.
func (rec *recorder) unlocked(f func()) {
	rec.mu.Unlock()
	defer rec.mu.Lock()
	f()
}

// flushReal flushes the real writer. A client that leaves does not end the work.
func (rec *recorder) flushReal() { _ = http.NewResponseController(rec.real).Flush() }

// admit checks the next n bytes of the body, and starts streaming if they do not fit.
func (rec *recorder) admit(n int) error {
	if rec.ended {
		rec.noteLate(http.StatusOK)
		return errHandlerEnded
	}
	if rec.status == 0 {
		rec.writeHeader(http.StatusOK)
	}
	switch {
	case rec.broken != nil:
		return rec.broken
	case !bodyAllowed(rec.status):
		return http.ErrBodyNotAllowed
	}
	rec.written += int64(n)
	switch {
	case rec.streaming && !rec.sending, !rec.streaming && rec.unkept(), len(rec.body)+n <= rec.settings.responseLimit:
		return nil
	case rec.stream == nil:
		rec.overflow = true
		rec.broken = errTooLarge
		return errTooLarge
	case rec.sending:
		rec.broken = errUnsent
		return errUnsent
	default:
		return rec.startStreaming()
	}
}

// cut returns why the answer of a handler that has returned is incomplete: its body is shorter than announced, or the
// deadline passed after the answer had begun, and no announced length proves that it is complete. It returns "" for a
// complete answer.
func (rec *recorder) cut() string {
	switch {
	case rec.status == 0 || !bodyAllowed(rec.status) || rec.head:
		return ""
	case rec.written < rec.length:
		return fmt.Sprintf("the handler announced an answer of %d bytes and wrote %d", rec.length, rec.written)
	case rec.inTime && rec.ctx.Err() != nil && rec.written != rec.length:
		return "the handler ran past its deadline, or lost its lease, while it wrote its answer"
	default:
		return ""
	}
}

// unkept reports whether the handler has set an outcome whose answer is not kept. Such an answer is not sent before the
// outcome is durable, so it does not stream, and the limit of stored answers does not apply.
func (rec *recorder) unkept() bool { return rec.op != nil && rec.op.outcome.Load() != endedAsWritten }

// startStreaming marks the record durably as not replayable, then sends the bytes written so far.
func (rec *recorder) startStreaming() error {
	var err error
	rec.callOut(func() { err = rec.stream.markStreaming() })
	if err != nil {
		rec.broken = fmt.Errorf("onceward: the response cannot be streamed, because this could not be recorded: %w", err)
		return rec.broken
	}
	rec.streaming = true
	rec.callOut(func() {
		rec.sendHeader(0)
		rec.real.WriteHeader(rec.status)
	})
	return nil
}

// takeBody returns the body to send, and prevents the reuse of its memory: after a failed Write, the server of HTTP/2
// may still read it.
func (rec *recorder) takeBody() []byte {
	body := rec.body
	rec.body = nil
	return body
}

// sendHeader writes the handler's header to the real writer and returns room for extra values. If there are trailers,
// Content-Length is removed.
func (rec *recorder) sendHeader(extra int) []string {
	room := rec.sendFields(rec.fields, extra)
	if len(rec.announced) > 0 || len(rec.trailers) > 0 {
		delete(rec.real.Header(), "Content-Length")
	}
	return room
}

// response returns the answer to store. The body is copied, because the recorder's buffer is reused.
func (rec *recorder) response() store.Response {
	if rec.status == 0 {
		rec.answerNothing()
	}
	response := store.Response{
		Status: rec.status, Header: rec.fields[:rec.stored:rec.stored], NotStored: rec.streaming || rec.bypassed,
	}
	if len(rec.body) > 0 && !rec.streaming {
		response.Body = append(make([]byte, 0, len(rec.body)), rec.body...)
	}
	return response
}

// errHandlerEnded is returned to a goroutine that writes after its handler has ended.
var errHandlerEnded = errors.New("onceward: the handler has ended")

// end ends writing: the answer consists of the bytes written so far. It waits for a goroutine of the handler that still
// sends, because net/http forbids the use of its writer after the handler has returned.
func (rec *recorder) end() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.ended = true
	for rec.sending {
		rec.idle.Wait()
	}
}

// answerNothing makes an empty 200 the answer of a handler that wrote no answer.
func (rec *recorder) answerNothing() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.writeHeader(http.StatusOK)
	rec.trailers = trailers(rec.header, rec.announced)
	rec.noAnswer = !rec.bypassed
}

// noteLate reports the first answer that a handler without an answer writes after its end.
func (rec *recorder) noteLate(status int) {
	if rec.noAnswer {
		rec.noAnswer = false
		rec.unlocked(func() { rec.late.wroteLate(status) })
	}
}

// gatherTrailers ends writing, and reads the trailers of a handler that has returned. It is not called after a panic:
// goroutines of the handler may still write to the header.
func (rec *recorder) gatherTrailers() {
	rec.end()
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.status != 0 {
		rec.trailers = trailers(rec.header, rec.announced)
	}
}

func (rec *recorder) hasEnded() bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.ended
}

// renewed returns an empty recorder for the same answer.
func (rec *recorder) renewed() *recorder {
	return &recorder{real: rec.real, settings: rec.settings, late: rec.late}
}

// close ends writing permanently and returns the buffer.
func (rec *recorder) close() []byte {
	rec.end()
	buffer := rec.body
	rec.body = nil
	return buffer
}

// send writes an answer with its body and its trailers, if any. A body that net/http would send in chunks gets its
// length, so that the first answer and its replays are framed alike; a length that the handler announced is replaced by
// the true length. Trailers need chunks.
func send(w http.ResponseWriter, status int, body []byte, trailers http.Header) {
	h := w.Header()
	if len(trailers) == 0 && bodyAllowed(status) && (len(body) > chunkedFrom || h["Content-Length"] != nil) {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = w.Write(body) // a client that left gets the answer on its retry
	}
	sendTrailers(w, trailers)
}

// chunkedFrom is the size up to which net/http computes the length of a body automatically.
const chunkedFrom = 2048

// Flush implements [http.Flusher].
func (rec *recorder) Flush() { _ = rec.FlushError() } // an http.Flusher cannot report it

// FlushError implements the method that [http.ResponseController] calls. A handler that flushes wants to stream: if
// possible, the answer streams from here on; otherwise it is still buffered.
func (rec *recorder) FlushError() error {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.ended {
		return errHandlerEnded
	}
	if rec.status == 0 {
		rec.writeHeader(http.StatusOK)
	}
	if rec.broken != nil || rec.stream == nil || failed(rec.status) || !rec.streaming && rec.unkept() {
		return rec.broken
	}
	if rec.sending {
		rec.flush = rec.flush || len(rec.body) > 0
		return nil
	}
	if !rec.streaming {
		if err := rec.startStreaming(); err != nil {
			return err
		}
	}
	rec.callOut(rec.flushReal)
	return nil
}

// SetReadDeadline implements the method that [http.ResponseController] calls.
func (rec *recorder) SetReadDeadline(deadline time.Time) error {
	return http.NewResponseController(rec.real).SetReadDeadline(deadline)
}

// SetWriteDeadline implements the method that [http.ResponseController] calls.
func (rec *recorder) SetWriteDeadline(deadline time.Time) error {
	return http.NewResponseController(rec.real).SetWriteDeadline(deadline)
}

// bodyAllowed reports whether an answer of this status has a body (rule A3).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// buffers holds the memory of request and response bodies, which handlers cannot use after they have ended.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxPooledBuffer bounds the memory that an idle buffer holds.
const maxPooledBuffer = 64 << 10

func newBuffer() *[]byte { return buffers.Get().(*[]byte) }

func freeBuffer(b *[]byte) {
	if cap(*b) <= maxPooledBuffer {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}
