package oncewardecho5

import (
	"net/http"

	"github.com/labstack/echo/v5"
)

// front is the response in front of the guard. While the guard writes to it, echo's context has it, so that hooks (by
// Before and After of [echo.Response]) find the answer that is sent, and not the one that the guard records.
type front struct {
	echo     *echo.Context
	response http.ResponseWriter
}

// show gives a writer to echo's context, and returns the one that the context had.
func (f *front) show(w http.ResponseWriter) (had http.ResponseWriter) {
	had = f.echo.Response()
	f.echo.SetResponse(w)
	return had
}

// Header implements [http.ResponseWriter].
func (f *front) Header() http.Header { return f.response.Header() }

// WriteHeader implements [http.ResponseWriter]. An informational answer goes past echo, which would take it for the
// answer.
func (f *front) WriteHeader(status int) {
	if response, err := echo.UnwrapResponse(f.response); err == nil && status < http.StatusOK {
		response.ResponseWriter.WriteHeader(status)
		return
	}
	defer f.show(f.show(f.response))
	f.response.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (f *front) Write(p []byte) (int, error) {
	defer f.show(f.show(f.response))
	return f.response.Write(p)
}

// FlushError is what [http.ResponseController] calls.
func (f *front) FlushError() error {
	defer f.show(f.show(f.response))
	return http.NewResponseController(f.response).Flush()
}

// Unwrap is for [http.ResponseController].
func (f *front) Unwrap() http.ResponseWriter { return f.response }
