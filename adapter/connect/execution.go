package oncewardconnect

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"os"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/rpc"
	"github.com/onceward/onceward/store"
)

// execution runs the handler of one call.
type execution struct {
	method   *method
	request  connect.AnyRequest
	call     rpc.Call
	next     connect.UnaryFunc
	response connect.AnyResponse // the response of the last run, or a replay
	err      error               // the error, if there is no response
	room     [256]byte           // for the payload of most requests
	values   [2]string           // the values of the guard's header fields

	// A handler sets fields in its response, or in the call info of its context. The call info also has the fields of
	// earlier interceptors, which are removed while the handler runs.
	header, trailer           http.Header // of the call info; nil if the context has none
	outerHeader, outerTrailer http.Header
}

func newExecution(
	ctx context.Context, m *method, request connect.AnyRequest, next connect.UnaryFunc,
) *execution {
	x := &execution{method: m, request: request, next: next}
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		x.header, x.trailer = info.ResponseHeader(), info.ResponseTrailer()
		if len(x.header) > 0 || len(x.trailer) > 0 {
			x.outerHeader, x.outerTrailer = maps.Clone(x.header), maps.Clone(x.trailer)
		}
	}
	return x
}

// run is the work function for the guard. The guard calls it again if a database undid the transaction.
func (x *execution) run(ctx context.Context) onceward.Answer {
	clear(x.header)
	clear(x.trailer)
	defer x.restore()
	x.handle(ctx)
	rpc.Say(ctx, x.err)
	answer, err := x.answer()
	if err != nil {
		x.response, x.err = nil, connect.NewError(connect.CodeInternal, err)
		answer, _ = x.answer() // now a plain text error
	}
	return answer
}

// handle runs the handler on the request as received.
func (x *execution) handle(ctx context.Context) {
	if err := x.method.Begin(&x.call); err != nil {
		x.response, x.err = nil, connect.NewError(connect.CodeInternal, err)
		return
	}
	if x.response, x.err = x.next(ctx, x.request); x.err != nil {
		x.response = nil
	}
}

// restore puts the fields of earlier interceptors back.
func (x *execution) restore() {
	add(x.header, x.outerHeader)
	add(x.trailer, x.outerTrailer)
}

// answer returns the result of the handler in the form that is stored.
func (x *execution) answer() (onceward.Answer, error) {
	reply := rpc.Reply{Header: decoded(x.header), Trailer: decoded(x.trailer)}
	if x.err != nil {
		reply.Status = statusOf(x.err)
		coded := (*connect.Error)(nil)
		if errors.As(x.err, &coded) && !connect.IsWireError(x.err) { // Connect does not forward another service's fields
			reply.Meta = decoded(coded.Meta())
		}
		return x.method.Answer(&reply)
	}
	var err error
	if reply.Message, err = rpc.Message(x.response.Any()); err != nil {
		return onceward.Answer{}, err
	}
	reply.Header = decoded(joined(x.header, x.response.Header()))
	reply.Trailer = decoded(joined(x.trailer, x.response.Trailer()))
	return x.method.Answer(&reply)
}

// replay makes a stored answer the outcome of the call.
func (x *execution) replay(ctx context.Context, stored onceward.Answer) {
	x.forget()
	reply, err := x.method.Reply(stored)
	if err != nil {
		x.err = problemError(x.method.Unreadable(ctx, x.method.Operation(), err))
		return
	}
	if reply.Status != nil {
		failed := errorOf(reply.Status)
		add(failed.Meta(), encoded(reply.Meta))
		add(x.header, encoded(reply.Header))
		add(x.trailer, encoded(reply.Trailer))
		x.err = failed
		return
	}
	x.response, _ = x.method.response.wrap(reply.Message) // New has checked the type
	add(x.response.Header(), encoded(reply.Header))
	if len(reply.Trailer) > 0 { // Trailer allocates a map
		add(x.response.Trailer(), encoded(reply.Trailer))
	}
}

// forget removes the result of a run that does not count.
func (x *execution) forget() {
	x.response, x.err = nil, nil
	clear(x.header)
	clear(x.trailer)
	x.restore()
}

// addFields adds the guard's fields to the header of the answer.
func (x *execution) addFields(served *onceward.Served) {
	var room [len(x.values)]store.HeaderField
	header := x.header
	if x.response != nil {
		header = x.response.Header()
	}
	if header == nil { // the call was not made by a Connect handler
		return
	}
	values := x.values[:0]
	for n, f := range x.method.AppendAnswerFields(room[:0], served) {
		values = append(values, f.Value)
		header[http.CanonicalHeaderKey(f.Name)] = values[n : n+1 : n+1]
	}
}

// add adds the values of one header to another, unless the other is nil.
func add(to, from http.Header) {
	if to == nil {
		return
	}
	for name, values := range from {
		name = http.CanonicalHeaderKey(name) // a gRPC server may have stored the answer
		to[name] = append(to[name], values...)
	}
}

// joined returns the values of both headers.
func joined(a, b http.Header) http.Header {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	all := a.Clone()
	add(all, b)
	return all
}

// decoded returns a header in the form that is stored. Values of names that end in -bin are bytes: gRPC handlers set
// them raw, and Connect handlers in base64. A value that is not base64 stays unchanged.
func decoded(h http.Header) http.Header {
	return withBinary(h, func(value string) string {
		if raw, err := connect.DecodeBinaryHeader(value); err == nil {
			return string(raw)
		}
		return value
	})
}

// encoded returns a stored header in the form in which a Connect handler would have set it.
func encoded(h http.Header) http.Header {
	return withBinary(h, func(value string) string { return connect.EncodeBinaryHeader([]byte(value)) })
}

// withBinary returns a header with changed values for names that end in -bin. Without such names it returns the same
// header.
func withBinary(h http.Header, change func(string) string) http.Header {
	var changed http.Header
	for name, values := range h {
		if !strings.HasSuffix(strings.ToLower(name), "-bin") {
			continue
		}
		if changed == nil {
			changed = maps.Clone(h)
		}
		changed[name] = make([]string, len(values))
		for i, value := range values {
			changed[name][i] = change(value)
		}
	}
	if changed == nil {
		return h
	}
	return changed
}

// statusOf returns the status that the server sends for an error of a handler.
func statusOf(err error) *status.Status {
	coded := (*connect.Error)(nil)
	switch {
	case errors.As(err, &coded):
	case errors.Is(err, context.Canceled):
		coded = connect.NewError(connect.CodeCanceled, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		coded = connect.NewError(connect.CodeDeadlineExceeded, err)
	default:
		coded = connect.NewError(connect.CodeUnknown, err)
	}
	s := &status.Status{Code: int32(coded.Code()), Message: coded.Message()}
	for _, detail := range coded.Details() {
		s.Details = append(s.Details, &anypb.Any{
			TypeUrl: "type.googleapis.com/" + detail.Type(), Value: detail.Bytes(),
		})
	}
	return s
}

// errorOf returns a status as a Connect error.
func errorOf(s *status.Status) *connect.Error {
	failed := connect.NewError(connect.Code(s.GetCode()), errors.New(s.GetMessage()))
	for _, packed := range s.GetDetails() {
		if detail, err := connect.NewErrorDetail(packed); err == nil { // always succeeds for a packed detail
			failed.AddDetail(detail)
		}
	}
	return failed
}

// problemError returns a problem as a Connect error.
func problemError(p *onceward.Problem) error {
	failed := errorOf(rpc.ProblemStatus(p))
	add(failed.Meta(), rpc.ProblemFields(p))
	return failed
}
