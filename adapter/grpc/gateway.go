package oncewardgrpc

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/grpc/status"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/rpc"
)

// IncomingHeader returns a header matcher for runtime.WithIncomingHeaderMatcher of grpc-gateway, which drops the key by
// default. It passes the key and the time of the first sending to the service under their own names. It passes other
// header fields to the next matcher, such as runtime.DefaultHeaderMatcher. Keys are further names of the key header, if
// [onceward.Config].Keys has names other than Idempotency-Key.
func IncomingHeader(next func(string) (string, bool), keys ...string) func(string) (string, bool) {
	return passing(next, append(keys, onceward.DefaultKeyHeader, onceward.FirstSentHeader))
}

// OutgoingHeader returns a header matcher for runtime.WithOutgoingHeaderMatcher of grpc-gateway. It sends the guard's
// header fields about an answer to the client under their own names, and passes other fields to the next matcher. If
// next is nil, grpc-gateway's default is used, which adds a prefix. Replayed is the value of
// [onceward.Config].ReplayedHeader, if it is not Idempotent-Replayed.
func OutgoingHeader(next func(string) (string, bool), replayed ...string) func(string) (string, bool) {
	if next == nil {
		next = func(name string) (string, bool) { return "Grpc-Metadata-" + name, true }
	}
	return passing(next, append(replayed, "Idempotent-Replayed", "Idempotency-Key-Expires", "Www-Authenticate"))
}

func passing(next func(string) (string, bool), names []string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if slices.ContainsFunc(names, func(own string) bool { return strings.EqualFold(own, name) }) {
			return strings.ToLower(name), true
		}
		return next(name)
	}
}

// ErrorHandler returns an error handler for runtime.WithErrorHandler of grpc-gateway. It answers the guard's problems
// in the same way as the guard's net/http handler: with the problem's status, such as 409 for a call in flight, with
// Retry-After, and as application/problem+json. The next handler, such as runtime.DefaultHTTPErrorHandler, answers
// other errors, and adds its header fields to problems. Mux and Marshaler are the ServeMux and Marshaler types of
// grpc-gateway.
func ErrorHandler[Mux, Marshaler any](
	next func(context.Context, Mux, Marshaler, http.ResponseWriter, *http.Request, error),
) func(context.Context, Mux, Marshaler, http.ResponseWriter, *http.Request, error) {
	return func(ctx context.Context, mux Mux, marshaler Marshaler, w http.ResponseWriter, r *http.Request, err error) {
		said, _ := status.FromError(err)
		if problem := rpc.ProblemOf(said.Proto()); problem != nil {
			w = &problemWriter{ResponseWriter: w, problem: problem, text: said.Message()}
		}
		next(ctx, mux, marshaler, w, r, err)
	}
}

// problemWriter writes a problem instead of the answer that the next handler writes.
type problemWriter struct {
	http.ResponseWriter
	problem *onceward.Problem
	text    string
	written bool
}

// WriteHeader implements [http.ResponseWriter].
func (w *problemWriter) WriteHeader(int) {
	if w.written {
		return
	}
	w.written = true
	h := w.Header()
	// grpc-gateway uses the text of the status as a challenge. The service's own challenges are in the metadata.
	challenges := slices.DeleteFunc(h["Www-Authenticate"], func(value string) bool { return value == w.text })
	if h["Www-Authenticate"] = challenges; len(challenges) == 0 {
		h.Del("Www-Authenticate")
	}
	w.problem.Write(w.ResponseWriter)
}

// Write implements [http.ResponseWriter].
func (w *problemWriter) Write(b []byte) (int, error) {
	w.WriteHeader(0)
	return len(b), nil
}
