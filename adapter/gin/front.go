package oncewardgin

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// front is gin's writer from before the guard. While the guard writes to it, front is also the writer in gin's context,
// so that a middleware with a writer of its own sees the answer that is sent, not the answer that the guard records.
type front struct {
	gin    *gin.Context
	writer gin.ResponseWriter
}

// show sets the writer of gin's context, and returns the previous writer.
func (f *front) show(w gin.ResponseWriter) (had gin.ResponseWriter) {
	had = f.gin.Writer
	f.gin.Writer = w
	return had
}

// Header implements [http.ResponseWriter].
func (f *front) Header() http.Header { return f.writer.Header() }

// WriteHeader implements [http.ResponseWriter].
func (f *front) WriteHeader(status int) {
	defer f.show(f.show(f.writer))
	f.writer.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (f *front) Write(p []byte) (int, error) {
	defer f.show(f.show(f.writer))
	return f.writer.Write(p)
}

// FlushError implements the method that [http.ResponseController] calls.
func (f *front) FlushError() error {
	defer f.show(f.show(f.writer))
	return http.NewResponseController(f.writer).Flush()
}

// Unwrap returns the wrapped writer, for [http.ResponseController].
func (f *front) Unwrap() http.ResponseWriter { return f.writer }
