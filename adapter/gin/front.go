package oncewardgin

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// front is gin's writer in front of the guard. While the guard writes to it, gin's context has it, so that a middleware
// with a writer of its own finds the answer that is sent, and not the one that the guard records.
type front struct {
	gin    *gin.Context
	writer gin.ResponseWriter
}

// show gives a writer to gin's context, and returns the one that the context had.
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

// FlushError is what [http.ResponseController] calls.
func (f *front) FlushError() error {
	defer f.show(f.show(f.writer))
	return http.NewResponseController(f.writer).Flush()
}

// Unwrap is for [http.ResponseController].
func (f *front) Unwrap() http.ResponseWriter { return f.writer }
