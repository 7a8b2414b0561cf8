package oncewardgin

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
)

// writer is gin's kind of writer around that of the guard. As gin's own it keeps a status back until there is a body,
// so that a later one replaces it.
type writer struct {
	http.ResponseWriter
	ctx     context.Context // the handler's
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

// end writes a status that no body followed. Of a handler that said nothing the guard is to judge.
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
	_ = http.NewResponseController(w.ResponseWriter).Flush() // an http.Flusher cannot report it
}

// Hijack implements [http.Hijacker]: a connection that was taken over cannot be replayed.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrNotSupported }

// CloseNotify implements [http.CloseNotifier]. The work goes on without its client, so it tells of the end of the
// handler's own context: what streams as long as its client is there would never end.
func (w *writer) CloseNotify() <-chan bool {
	ended := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { ended <- true })
	return ended
}

// Pusher implements [gin.ResponseWriter].
func (w *writer) Pusher() http.Pusher { return nil }

// Unwrap is for [http.ResponseController].
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
