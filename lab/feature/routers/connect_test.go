package routers_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/onceward/onceward"
	oncewardconnect "github.com/onceward/onceward/adapter/connect"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/lab/feature/suite"
)

// connectProtocols are the ways of a client to speak to the one server.
var connectProtocols = map[string][]connect.ClientOption{
	"Connect": {connect.WithProtoJSON()},
	"gRPC":    {connect.WithGRPC()},
	"gRPCWeb": {connect.WithGRPCWeb()},
}

func TestConnect(t *testing.T) {
	t.Parallel()
	for name, options := range connectProtocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name != "Connect" {
				nightly.Only(t, "the server is the same; TestOneAnswerForAllProtocols has all of its protocols")
			}
			suite.Run(t, suite.Adapter{
				Name: name, Operation: createMethod, Serve: servedTo(options...),
				Features: suite.Features{Headers: true, KeyLines: true, FirstSent: true, Refusals: true, Errors: true},
			})
		})
	}
}

func servedTo(client ...connect.ClientOption) suite.Serve {
	return func(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
		return dialConnect(startConnect(t, connectProtection(t, guard, options...), handlerOfConnect(work)), client...)
	}
}

func connectProtection(t *testing.T, guard *onceward.Guard, options ...onceward.Option) *oncewardconnect.Interceptor {
	t.Helper()
	method := oncewardconnect.Method{
		Options: options, RequestID: "request_id", Response: oncewardconnect.Response[paymentpb.Receipt](),
	}
	protect, err := oncewardconnect.New(guard, oncewardconnect.Config{
		Scope: connectTenant, Methods: map[string]oncewardconnect.Method{createMethod: method, refundMethod: method},
	})
	if err != nil {
		t.Fatal(err)
	}
	return protect
}

// connectTenant takes the scope from the header, as a service with authentication would.
func connectTenant(_ context.Context, r connect.AnyRequest) (string, error) {
	if token := r.Header().Get("Authorization"); token != "" {
		return token, nil
	}
	return "", onceward.Unauthenticated(`Bearer realm="payments"`)
}

type (
	request        = connect.Request[paymentpb.Payment]
	response       = connect.Response[paymentpb.Receipt]
	connectHandler = func(context.Context, *request) (*response, error)
	client         = connect.Client[paymentpb.Payment, paymentpb.Receipt]
)

// startConnect serves on loopback until the test ends: HTTP/1 for Connect and gRPC-Web, HTTP/2 for gRPC.
func startConnect(t *testing.T, protect connect.Interceptor, h connectHandler) *httptest.Server {
	t.Helper()
	options := []connect.HandlerOption{
		connect.WithInterceptors(protect),
		connect.WithRecover(func(_ context.Context, _ connect.Spec, _ http.Header, p any) error {
			return connect.NewError(connect.CodeInternal, fmt.Errorf("recovered: %v", p))
		}),
	}
	mux := http.NewServeMux()
	for _, name := range []string{createMethod, refundMethod} {
		mux.Handle(name, connect.NewUnaryHandler(name, h, options...))
	}
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	server.Client().Transport = transport
	t.Cleanup(transport.CloseIdleConnections)
	return server
}

// handlerOfConnect is the work as a handler of Connect has it. The status of a refusal goes along as a detail.
func handlerOfConnect(work suite.Work) connectHandler {
	return func(ctx context.Context, r *request) (*response, error) {
		reply := work(ctx, suite.Payment{Account: r.Msg.GetAccount(), Amount: r.Msg.GetAmount(), Memo: r.Msg.GetMemo()})
		switch {
		case reply.Status == 0:
			return nil, ctx.Err()
		case reply.Status >= http.StatusBadRequest:
			failed := connect.NewError(codeOfConnect(reply.Status), errors.New(reply.Body))
			detail, err := connect.NewErrorDetail(wrapperspb.Int32(int32(reply.Status)))
			if err != nil {
				return nil, err
			}
			failed.AddDetail(detail)
			return nil, failed
		}
		answer := connect.NewResponse(&paymentpb.Receipt{Status: int32(reply.Status), Body: []byte(reply.Body)})
		for name, value := range reply.Header {
			answer.Header().Set(name, value)
		}
		return answer, nil
	}
}

func codeOfConnect(httpStatus int) connect.Code {
	switch httpStatus {
	case http.StatusBadRequest:
		return connect.CodeInvalidArgument
	case http.StatusServiceUnavailable:
		return connect.CodeUnavailable
	case http.StatusInternalServerError:
		return connect.CodeInternal
	default:
		return connect.CodeFailedPrecondition
	}
}

// connectCaller is a client of Connect.
type connectCaller struct{ create, refund *client }

func dialConnect(server *httptest.Server, options ...connect.ClientOption) connectCaller {
	to := func(name string) *client {
		return connect.NewClient[paymentpb.Payment, paymentpb.Receipt](server.Client(), server.URL+name, options...)
	}
	return connectCaller{to(createMethod), to(refundMethod)}
}

// Call implements [suite.Caller].
func (c connectCaller) Call(ctx context.Context, r suite.Request) (suite.Answer, error) {
	call := connect.NewRequest(&paymentpb.Payment{Account: r.Account, Amount: r.Amount, Memo: r.Memo})
	if r.Key != "" {
		call.Header().Set("Idempotency-Key", r.Key)
	}
	if r.Keys != nil {
		call.Header()["Idempotency-Key"] = r.Keys
	}
	if r.Tenant != "" {
		call.Header().Set("Authorization", r.Tenant)
	}
	if r.FirstSent != "" {
		call.Header().Set(onceward.FirstSentHeader, r.FirstSent)
	}
	to := c.create
	if r.Refund {
		to = c.refund
	}
	got, err := to.CallUnary(ctx, call)
	if ctx.Err() != nil {
		return suite.Answer{}, ctx.Err()
	}
	if failed := (*connect.Error)(nil); errors.As(err, &failed) {
		answer := suite.Answer{Header: failed.Meta(), Body: failed.Message(), Status: http.StatusInternalServerError}
		err := errors.Join(readErrorConnect(&answer, failed), readHeader(&answer))
		return answer, err
	}
	if err != nil {
		return suite.Answer{}, err
	}
	answer := suite.Answer{Header: got.Header(), Body: string(got.Msg.GetBody()), Status: int(got.Msg.GetStatus())}
	err = readHeader(&answer)
	return answer, err
}

func readHeader(answer *suite.Answer) (err error) {
	answer.Replayed = answer.Header.Get("Idempotent-Replayed") == "true"
	if expires := answer.Header.Get("Idempotency-Key-Expires"); expires != "" {
		answer.Expires, err = http.ParseTime(expires)
	}
	return err
}

// readErrorConnect reads what the details of an error say: of the guard's, or the handler's.
func readErrorConnect(answer *suite.Answer, failed *connect.Error) error {
	for _, detail := range failed.Details() {
		message, err := detail.Value()
		if err != nil {
			return err
		}
		switch d := message.(type) {
		case *wrapperspb.Int32Value:
			answer.Status = int(d.GetValue())
		case *errdetails.ErrorInfo:
			answer.Code, answer.Retryable = d.GetMetadata()["code"], d.GetMetadata()["retryable"] == "true"
			if answer.Status, err = strconv.Atoi(d.GetMetadata()["status"]); err != nil {
				return err
			}
		case *errdetails.RetryInfo:
			answer.RetryAfter = d.GetRetryDelay().AsDuration().Round(time.Millisecond)
		default:
			return fmt.Errorf("a detail that is not known: %T", d)
		}
	}
	return nil
}
