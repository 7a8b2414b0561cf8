package oncewardecho4

import (
	"net/http"

	"github.com/labstack/echo/v4"
)

// front is the response from before the guard. While the guard writes to it, front is also the response in echo's
// context, so that hooks (Before and After of [echo.Response]) see the answer that is sent, not the answer that the
// guard records.
type front struct {
	echo     echo.Context
	response *echo.Response
}

// show sets the response of echo's context, and returns the previous response.
func (f *front) show(w *echo.Response) (had *echo.Response) {
	had = f.echo.Response()
	f.echo.SetResponse(w)
	return had
}

// Header implements [http.ResponseWriter].
func (f *front) Header() http.Header { return f.response.Header() }

// WriteHeader implements [http.ResponseWriter]. An informational answer bypasses echo's response, which would treat it
// as the final answer.
func (f *front) WriteHeader(status int) {
	if status < http.StatusOK {
		f.response.Writer.WriteHeader(status)
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

// FlushError implements the method that [http.ResponseController] calls.
func (f *front) FlushError() error {
	defer f.show(f.show(f.response))
	return http.NewResponseController(f.response).Flush()
}

// Unwrap returns the wrapped response, for [http.ResponseController].
func (f *front) Unwrap() http.ResponseWriter { return f.response }
