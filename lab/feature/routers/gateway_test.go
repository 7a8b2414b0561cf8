package routers_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/onceward/onceward"
	oncewardgrpc "github.com/onceward/onceward/adapter/grpc"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/lab/feature/suite"
)

// TestGRPCInProcess: a connection within the process protects as a server does.
func TestGRPCInProcess(t *testing.T) {
	t.Parallel()
	suite.Run(t, suite.Adapter{
		Name: "gRPC in the process", Operation: createMethod,
		Serve: func(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
			method := oncewardgrpc.Method{Options: options, RequestID: "request_id"}
			protect := grpcProtection(t, guard, map[string]oncewardgrpc.Method{createMethod: method, refundMethod: method})
			local := protect.InProcess(recovers)
			local.RegisterService(description(handlerOfGRPC(work)), nil)
			return leavingCaller{grpcCaller{local}}
		},
		Features: suite.Features{Headers: true, KeyLines: true, FirstSent: true, Refusals: true, Errors: true},
	})
}

// leavingCaller leaves when its context ends, as the HTTP client of a gateway does. The gateway waits for the work.
type leavingCaller struct{ grpcCaller }

// Call implements [suite.Caller].
func (c leavingCaller) Call(ctx context.Context, r suite.Request) (suite.Answer, error) {
	done := make(chan struct{})
	var answer suite.Answer
	var err error
	go func() {
		defer close(done)
		answer, err = c.grpcCaller.Call(ctx, r)
	}()
	select {
	case <-done:
		return answer, err
	case <-ctx.Done():
		return suite.Answer{}, ctx.Err()
	}
}

// gateway serves a method by grpc-gateway, on a connection, as the generated RegisterXHandlerClient does.
func gateway(t *testing.T, conn grpc.ClientConnInterface) string {
	t.Helper()
	mux := runtime.NewServeMux(
		runtime.WithIncomingHeaderMatcher(oncewardgrpc.IncomingHeader(runtime.DefaultHeaderMatcher)),
		runtime.WithOutgoingHeaderMatcher(oncewardgrpc.OutgoingHeader(nil)),
		runtime.WithErrorHandler(oncewardgrpc.ErrorHandler(runtime.DefaultHTTPErrorHandler)),
	)
	serve := func(w http.ResponseWriter, r *http.Request, _ map[string]string) {
		inbound, outbound := runtime.MarshalerForRequest(mux, r)
		ctx, err := runtime.AnnotateContext(r.Context(), mux, r, createMethod, runtime.WithHTTPPathPattern("/v1/payments"))
		if err != nil {
			runtime.HTTPError(ctx, mux, outbound, w, r, err)
			return
		}
		request, reply := new(paymentpb.Payment), new(paymentpb.Receipt)
		if err := inbound.NewDecoder(r.Body).Decode(request); err != nil {
			runtime.HTTPError(ctx, mux, outbound, w, r, status.Error(codes.InvalidArgument, err.Error()))
			return
		}
		var md runtime.ServerMetadata
		err = conn.Invoke(ctx, createMethod, request, reply, grpc.Header(&md.HeaderMD), grpc.Trailer(&md.TrailerMD))
		ctx = runtime.NewServerMetadataContext(ctx, md)
		if err != nil {
			runtime.HTTPError(ctx, mux, outbound, w, r, err)
			return
		}
		runtime.ForwardResponseMessage(ctx, mux, outbound, w, r, reply, mux.GetForwardResponseOptions()...)
	}
	if err := mux.HandlePath(http.MethodPost, "/v1/payments", serve); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	return web.URL + "/v1/payments"
}

// pay sends a payment as JSON.
func pay(t *testing.T, url, key, tenant string) (*http.Response, string) {
	t.Helper()
	answer, body, err := sendPayment(t.Context(), url, key, tenant)
	if err != nil {
		t.Fatal(err)
	}
	return answer, body
}

func sendPayment(ctx context.Context, url, key, tenant string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"amount": "7"}`))
	if err != nil {
		return nil, "", err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if tenant != "" {
		req.Header.Set("Authorization", tenant)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer, string(body), err
}

// gatewayProtection protects a service with a handler, on a server and in the process, and returns both connections.
func gatewayProtection(t *testing.T, handler grpcHandler) (dialled, local grpc.ClientConnInterface) {
	t.Helper()
	protect := grpcProtection(t, guardOfScope(t, nil), map[string]oncewardgrpc.Method{
		createMethod: {Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}},
	})
	inProcess := protect.InProcess(recovers)
	inProcess.RegisterService(description(handler), nil)
	return dialGRPC(t, startGRPC(t, handler, grpc.ChainUnaryInterceptor(recovers, protect.Unary))), inProcess
}

// TestGatewayExecutesOnce: a call by gRPC and its repetitions by gateways, in the process and dialled, are one execution.
func TestGatewayExecutesOnce(t *testing.T) {
	t.Parallel()
	var executions atomic.Int64
	dialled, local := gatewayProtection(t, func(ctx context.Context, p *paymentpb.Payment) (*paymentpb.Receipt, error) {
		executions.Add(1)
		return &paymentpb.Receipt{Status: 201}, grpc.SetHeader(ctx, metadata.Pairs("x-own", "1"))
	})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "k", "authorization", "alice")
	if err := dialled.Invoke(ctx, createMethod, &paymentpb.Payment{Amount: 7}, new(paymentpb.Receipt)); err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]grpc.ClientConnInterface{"in the process": local, "dialled": dialled} {
		answer, body := pay(t, gateway(t, conn), "k", "alice")
		h := answer.Header
		if answer.StatusCode != http.StatusOK || !strings.Contains(body, "201") || h.Get("Idempotent-Replayed") != "true" ||
			h.Get("Idempotency-Key-Expires") == "" || h.Get("Grpc-Metadata-X-Own") != "1" {
			t.Errorf("%s: got %d %v %s", name, answer.StatusCode, h, body)
		}
	}
	if n := executions.Load(); n != 1 {
		t.Errorf("%d executions, want 1", n)
	}
}

// TestGatewayProblems: an HTTP client of a gateway sees the guard's answers as a client of net/http does.
func TestGatewayProblems(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	dialled, local := gatewayProtection(t, func(context.Context, *paymentpb.Payment) (*paymentpb.Receipt, error) {
		begun <- struct{}{}
		<-end
		return nil, status.Error(codes.NotFound, "there is no such account")
	})
	for name, conn := range map[string]grpc.ClientConnInterface{"local": local, "dialled": dialled} {
		url := gateway(t, conn)
		want := func(answer *http.Response, body string, code int, problem string) {
			t.Helper()
			var p onceward.Problem
			if err := json.Unmarshal([]byte(body), &p); err != nil {
				t.Fatal(err)
			}
			if answer.StatusCode != code || answer.Header.Get("Content-Type") != "application/problem+json" || p.Status != code ||
				p.Code != problem || p.Title == "" || p.Instance == "" || p.Type != onceward.DefaultProblemBase+problem {
				t.Errorf("%s: got %d %v %s, want %d %s", name, answer.StatusCode, answer.Header, body, code, problem)
			}
		}
		answer, body := pay(t, url, "", "alice")
		want(answer, body, http.StatusBadRequest, "missing-key")
		if !strings.Contains(body, "oncewardgrpc.IncomingHeader") {
			t.Errorf("%s: a missing key: %s", name, body)
		}
		answer, body = pay(t, url, "k", "")
		want(answer, body, http.StatusUnauthorized, "unauthenticated")
		if got := answer.Header.Values("Www-Authenticate"); !slices.Equal(got, []string{`Bearer realm="payments"`}) {
			t.Errorf("%s: the challenges are %q", name, got)
		}
		first := make(chan struct{})
		go func() {
			defer close(first)
			answer, body, err := sendPayment(t.Context(), url, name, "alice")
			if err != nil || answer.StatusCode != http.StatusNotFound || !strings.Contains(body, "there is no such account") {
				t.Errorf("%s: the handler's own error: %v %s, error %v", name, answer, body, err)
			}
		}()
		select {
		case <-begun:
		case <-first:
			t.Fatalf("%s: the handler was not called", name)
		}
		answer, body = pay(t, url, name, "alice")
		want(answer, body, http.StatusConflict, "in-progress")
		if answer.Header.Get("Retry-After") == "" {
			t.Errorf("%s: in flight: the header is %v", name, answer.Header)
		}
		end <- struct{}{}
		<-first
	}
}

// TestGatewayAudit: what the schema serves over HTTP is listed, unless it is known how a gateway calls it.
func TestGatewayAudit(t *testing.T) {
	const service = "onceward.gateway.Payments"
	const create = "/" + service + "/Create"
	rule := new(descriptorpb.MethodOptions)
	proto.SetExtension(rule, annotations.E_Http, &annotations.HttpRule{
		Pattern: &annotations.HttpRule_Post{Post: "/v1/payments"}, Body: "*",
	})
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("gateway_test.proto"), Package: proto.String("onceward.gateway"), Syntax: proto.String("proto3"),
		Dependency: []string{paymentpb.File_payment_proto.Path(), annotations.File_google_api_annotations_proto.Path()},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Payments"), Method: []*descriptorpb.MethodDescriptorProto{{
			Name: proto.String("Create"), Options: rule,
			InputType: proto.String(".onceward.test.Payment"), OutputType: proto.String(".onceward.test.Receipt"),
		}}}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	if err := protoregistry.GlobalFiles.RegisterFile(file); err != nil {
		t.Fatal(err)
	}
	services := map[string]grpc.ServiceInfo{
		service:                  {Methods: []grpc.MethodInfo{{Name: "Create"}}},
		"onceward.test.Payments": {Methods: []grpc.MethodInfo{{Name: "Create"}}},
	}
	protection := func(gatewaysDial bool) *oncewardgrpc.Interceptor {
		method := oncewardgrpc.Method{Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}}
		protect, err := oncewardgrpc.New(guardOfScope(t, nil), oncewardgrpc.Config{
			Scope: grpcTenant, GatewaysDial: gatewaysDial,
			Methods: map[string]oncewardgrpc.Method{create: method, createMethod: method},
		})
		if err != nil {
			t.Fatal(err)
		}
		return protect
	}
	protect := protection(false)
	if got := protect.Audit(services); !slices.Equal(got, []string{create + oncewardgrpc.PastInterceptor}) {
		t.Errorf("got %q", got)
	}
	if got := protect.Audit(services, create+oncewardgrpc.PastInterceptor); len(got) != 0 {
		t.Errorf("what is exempt is listed: %q", got)
	}
	protect.InProcess().RegisterService(&grpc.ServiceDesc{
		ServiceName: service, Methods: []grpc.MethodDesc{{MethodName: "Create"}},
	}, nil)
	if got := protect.Audit(services); len(got) != 0 {
		t.Errorf("what is registered in the process is listed: %q", got)
	}
	if got := protection(true).Audit(services); len(got) != 0 {
		t.Errorf("what gateways dial is listed: %q", got)
	}
}
