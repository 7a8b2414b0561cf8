package oncewardgin

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
)

// writer is a gin.ResponseWriter around the guard's writer. Like gin's own writer, it delays the status until there is
// a body, so that a later status replaces an earlier one.
type writer struct {
	http.ResponseWriter
	ctx     context.Context // the handler's context
	status  int             // zero if none was given
	size    int
	written bool
}

var _ gin.ResponseWriter = (*writer)(nil)

// WriteHeader implements [http.ResponseWriter].
func (w *writer) WriteHeader(status int) {
	if status > 0 && !w.written {
		w.status = status
	}
}

// WriteHeaderNow implements [gin.ResponseWriter].
func (w *writer) WriteHeaderNow() {
	if !w.written {
		w.written = true
		w.ResponseWriter.WriteHeader(w.Status())
	}
}

// end writes a status without a body. If the handler set no status, the guard decides what the missing answer means.
func (w *writer) end() {
	if w.status != 0 {
		w.WriteHeaderNow()
	}
}

// Write implements [io.Writer].
func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.ResponseWriter.Write(p)
	w.size += n
	return n, err
}

// WriteString implements [io.StringWriter].
func (w *writer) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	n, err := io.WriteString(w.ResponseWriter, s)
	w.size += n
	return n, err
}

// Status implements [gin.ResponseWriter].
func (w *writer) Status() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

// Size implements [gin.ResponseWriter].
func (w *writer) Size() int {
	if !w.written {
		return -1
	}
	return w.size
}

// Written implements [gin.ResponseWriter].
func (w *writer) Written() bool { return w.written }

// Flush implements [http.Flusher].
func (w *writer) Flush() {
	w.WriteHeaderNow()
	_ = http.NewResponseController(w.ResponseWriter).Flush() // an http.Flusher cannot report an error
}

// Hijack implements [http.Hijacker]. It returns an error, because a hijacked connection cannot be replayed.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrNotSupported }

// CloseNotify implements [http.CloseNotifier]. The work continues without the client, so it reports the end of the
// handler's own context: a stream that lasts as long as its client is connected would never end.
func (w *writer) CloseNotify() <-chan bool {
	ended := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { ended <- true })
	return ended
}

// Pusher implements [gin.ResponseWriter].
func (w *writer) Pusher() http.Pusher { return nil }

// Unwrap returns the wrapped writer, for [http.ResponseController].
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
