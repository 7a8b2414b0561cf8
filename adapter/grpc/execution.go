package oncewardgrpc

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/rpc"
)

// execution runs the handler of one call. It is also the server stream that the handler sees: it collects the header
// and the trailer, which are sent when the outcome is durable, and not before (E7).
type execution struct {
	method  *rpc.Method
	request any
	call    rpc.Call
	handler grpc.UnaryHandler
	reply   any       // the reply of the last run
	err     error     // the error of the last run, if there is no reply
	room    [256]byte // for the payload of most requests
	values  [2]string // the values of the guard's header fields

	mu              sync.Mutex // a goroutine of the handler may still call after the handler has returned
	header, trailer metadata.MD
	headerSent      bool // as far as the handler knows
}

var _ grpc.ServerTransportStream = (*execution)(nil)

// run is the work function for the guard. The guard calls it again if a database undid the transaction.
func (x *execution) run(ctx context.Context) onceward.Answer {
	x.mu.Lock()
	x.header, x.trailer, x.headerSent = nil, nil, false
	x.mu.Unlock()
	x.handle(ctx)
	rpc.Say(ctx, x.err)
	answer, err := x.answer()
	if err != nil {
		x.reply, x.err = nil, status.Error(codes.Internal, err.Error())
		answer, _ = x.answer() // now a plain text error
	}
	return answer
}

// handle runs the handler on the request as received.
func (x *execution) handle(ctx context.Context) {
	if err := x.method.Begin(&x.call); err != nil {
		x.reply, x.err = nil, status.Error(codes.Internal, err.Error())
		return
	}
	x.reply, x.err = x.handler(grpc.NewContextWithServerTransportStream(ctx, x), x.request)
}

// answer returns the result of the handler in the form that is stored.
func (x *execution) answer() (onceward.Answer, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	reply := rpc.Reply{Header: x.header, Trailer: x.trailer}
	if x.err != nil {
		reply.Status = statusOf(x.err).Proto()
		return x.method.Answer(&reply)
	}
	var err error
	if reply.Message, err = rpc.Message(x.reply); err != nil {
		return onceward.Answer{}, err
	}
	return x.method.Answer(&reply)
}

// statusOf returns the status that the server sends for an error of a handler.
func statusOf(err error) *status.Status {
	if s, ok := status.FromError(err); ok {
		return s
	}
	return status.FromContextError(err)
}

// send passes the header and the trailer to the stream of the call.
func (x *execution) send(ctx context.Context) {
	x.mu.Lock()
	defer x.mu.Unlock()
	setFields(ctx, x.header, x.trailer)
}

// replay answers with the stored answer.
func replay(ctx context.Context, m *rpc.Method, stored onceward.Answer) (any, error) {
	reply, err := m.Reply(stored)
	if err != nil {
		return nil, refuse(ctx, m.Unreadable(ctx, m.Operation(), err))
	}
	setFields(ctx, lower(reply.Header), lower(reply.Trailer))
	if reply.Status != nil {
		return nil, status.FromProto(reply.Status).Err()
	}
	return reply.Message, nil
}

// lower returns a header with names in lower case, as metadata requires, because a Connect server may have stored the
// answer.
func lower(h map[string][]string) metadata.MD {
	if len(h) == 0 {
		return nil
	}
	md := make(metadata.MD, len(h))
	for name, values := range h {
		md.Append(name, values...)
	}
	return md
}

// setFields sets the header and the trailer of the answer.
func setFields(ctx context.Context, header, trailer metadata.MD) {
	// These calls fail only if nothing can be sent any more, or if the interceptor was not called by a server.
	_ = grpc.SetHeader(ctx, header)
	_ = grpc.SetTrailer(ctx, trailer)
}

// Method implements [grpc.ServerTransportStream].
func (x *execution) Method() string { return x.method.Name }

// SetHeader implements [grpc.ServerTransportStream].
func (x *execution) SetHeader(md metadata.MD) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.headerSent {
		return status.Error(codes.Internal, "oncewardgrpc: the header was sent before")
	}
	x.header = metadata.Join(x.header, md)
	return nil
}

// SendHeader implements [grpc.ServerTransportStream]. The header is sent with the answer.
func (x *execution) SendHeader(md metadata.MD) error {
	if err := x.SetHeader(md); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.headerSent = true
	return nil
}

// SetTrailer implements [grpc.ServerTransportStream].
func (x *execution) SetTrailer(md metadata.MD) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.trailer = metadata.Join(x.trailer, md)
	return nil
}
