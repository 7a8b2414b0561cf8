package oncewardconnect_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/onceward/onceward"
	oncewardconnect "github.com/onceward/onceward/adapter/connect"
	"github.com/onceward/onceward/internal/rpc"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

const create = "/onceward.test.Payments/Create"

type (
	request  = connect.Request[paymentpb.Payment]
	response = connect.Response[paymentpb.Receipt]
)

func newGuard(t *testing.T) *onceward.Guard {
	t.Helper()
	guard, err := onceward.New(memory.New(), onceward.Config{
		Secret: []byte("the secret of the tests"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

func scope(context.Context, connect.AnyRequest) (string, error) { return "tenant", nil }

func pay(context.Context, *request) (*response, error) {
	return connect.NewResponse(&paymentpb.Receipt{Status: 201}), nil
}

func protection(t *testing.T, options ...onceward.Option) *oncewardconnect.Interceptor {
	t.Helper()
	protect, err := oncewardconnect.New(newGuard(t), oncewardconnect.Config{
		Scope: scope, Methods: map[string]oncewardconnect.Method{
			create: {Options: options, Response: oncewardconnect.Response[paymentpb.Receipt]()},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return protect
}

func TestNew(t *testing.T) {
	t.Parallel()
	options := []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}
	receipt := oncewardconnect.Response[paymentpb.Receipt]()
	one := func(name string, m oncewardconnect.Method) oncewardconnect.Config {
		return oncewardconnect.Config{Scope: scope, Methods: map[string]oncewardconnect.Method{name: m}}
	}
	wrong := oncewardconnect.Response[paymentpb.Payment]()
	for want, config := range map[string]oncewardconnect.Config{
		"Config.Scope is missing": {Methods: map[string]oncewardconnect.Method{create: {}}},
		"Config.Methods is empty": {Scope: scope},
		"only unary methods can be protected": one("/onceward.test.Payments/Watch",
			oncewardconnect.Method{Options: options, Response: receipt}),
		"the Response of /onceward.test.Payments/Create is missing": one(create,
			oncewardconnect.Method{Options: options}),
		"is a onceward.test.Receipt": one(create, oncewardconnect.Method{Options: options, Response: wrong}),
	} {
		_, err := oncewardconnect.New(newGuard(t), config)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	protect := protection(t, onceward.Reserved(onceward.FailureUnknown))
	const refund, watch = "/onceward.test.Payments/Refund", "/onceward.test.Payments/Watch"
	services := paymentpb.File_payment_proto.Services()
	if got := protect.Audit(services); !slices.Equal(got, []string{refund, watch}) {
		t.Errorf("got %q", got)
	}
	if got := protect.Audit(services, watch, refund); len(got) != 0 {
		t.Errorf("those that are exempt are listed: %q", got)
	}
}

// TestScopesThatFail: an error of a scope function that has a code of its own means what it says.
func TestScopesThatFail(t *testing.T) {
	t.Parallel()
	for want, failed := range map[connect.Code]error{
		connect.CodeUnauthenticated:  connect.NewError(connect.CodeUnauthenticated, errors.New("who?")),
		connect.CodePermissionDenied: connect.NewError(connect.CodePermissionDenied, errors.New("not you")),
		connect.CodeUnavailable:      errors.New("the directory is down"),
	} {
		protect, err := oncewardconnect.New(newGuard(t), oncewardconnect.Config{
			Scope: func(context.Context, connect.AnyRequest) (string, error) { return "", failed },
			Methods: map[string]oncewardconnect.Method{create: {
				Options:  []onceward.Option{onceward.Reserved(onceward.FailureUnknown)},
				Response: oncewardconnect.Response[paymentpb.Receipt](),
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(connect.NewUnaryHandler(create, pay, connect.WithInterceptors(protect)))
		defer server.Close()
		client := connect.NewClient[paymentpb.Payment, paymentpb.Receipt](server.Client(), server.URL+create)
		if _, err := client.CallUnary(t.Context(), connect.NewRequest(&paymentpb.Payment{})); connect.CodeOf(err) != want {
			t.Errorf("%v: got %v", failed, err)
		}
	}
}

// TestErrorFields makes the same failing call twice: the replay has the same fields as the first answer. Connect sends the
// fields of an error that the handler made, and drops the fields of an error that the handler got from another service.
func TestErrorFields(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		newError func(connect.Code, error) *connect.Error
		wrapped  bool
		want     string
	}{
		"its own":           {connect.NewError, false, "seen"},
		"its own, inside":   {connect.NewError, true, "seen"},
		"another's":         {connect.NewWireError, false, ""},
		"another's, inside": {connect.NewWireError, true, ""},
	} {
		for protocol, option := range map[string]connect.ClientOption{
			"connect": connect.WithProtoJSON(), "grpc-web": connect.WithGRPCWeb(),
		} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				t.Parallel()
				runs := 0
				fail := func(context.Context, *request) (*response, error) {
					runs++
					failed := c.newError(connect.CodeFailedPrecondition, errors.New("no money"))
					failed.Meta().Set("X-Field", "seen")
					if c.wrapped {
						return nil, fmt.Errorf("pay: %w", failed)
					}
					return nil, failed
				}
				protect := protection(t, onceward.Reserved(onceward.FailureUnknown))
				server := httptest.NewServer(connect.NewUnaryHandler(create, fail, connect.WithInterceptors(protect)))
				defer server.Close()
				client := connect.NewClient[paymentpb.Payment, paymentpb.Receipt](server.Client(), server.URL+create, option)
				for _, replayed := range []string{"", "true"} {
					r := connect.NewRequest(&paymentpb.Payment{})
					r.Header().Set("Idempotency-Key", "k")
					_, err := client.CallUnary(t.Context(), r)
					failed := (*connect.Error)(nil)
					if !errors.As(err, &failed) || failed.Code() != connect.CodeFailedPrecondition || failed.Message() != "no money" {
						t.Fatalf("replayed %q: got %v", replayed, err)
					}
					if got := failed.Meta().Get("Idempotent-Replayed"); got != replayed {
						t.Errorf("replayed is %q, want %q", got, replayed)
					}
					if got := failed.Meta().Get("X-Field"); got != c.want {
						t.Errorf("replayed %q: the field is %q, want %q", replayed, got, c.want)
					}
				}
				if runs != 1 {
					t.Errorf("the handler ran %d times", runs)
				}
			})
		}
	}
}

// TestBinaryFields: what a handler of gRPC set as bytes, a server of Connect sends in base64, and the other way round.
func TestBinaryFields(t *testing.T) {
	t.Parallel()
	s := memory.New()
	guard, err := onceward.New(s, onceward.Config{
		Secret: []byte("the secret of the tests"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	options := []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}
	protect, err := oncewardconnect.New(guard, oncewardconnect.Config{
		Scope: scope, Methods: map[string]oncewardconnect.Method{
			create: {Options: options, Response: oncewardconnect.Response[paymentpb.Receipt]()},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	const bytes = "\x00\xff\n"
	server := httptest.NewServer(connect.NewUnaryHandler(create, func(context.Context, *request) (*response, error) {
		r := connect.NewResponse(&paymentpb.Receipt{})
		r.Header().Set("X-Bytes-Bin", connect.EncodeBinaryHeader([]byte(bytes)))
		return r, nil
	}, connect.WithInterceptors(protect)))
	defer server.Close()
	client := connect.NewClient[paymentpb.Payment, paymentpb.Receipt](server.Client(), server.URL+create)
	for range 2 {
		r := connect.NewRequest(&paymentpb.Payment{})
		r.Header().Set("Idempotency-Key", "k")
		answer, err := client.CallUnary(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := connect.DecodeBinaryHeader(answer.Header().Get("X-Bytes-Bin"))
		if err != nil || string(got) != bytes {
			t.Errorf("got %q, error %v", got, err)
		}
	}
	// As a server of gRPC finds it.
	method, err := rpc.NewMethod(guard, create, "", options)
	if err != nil {
		t.Fatal(err)
	}
	record, err := s.Get(t.Context(), store.ID{Scope: "tenant", Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	reply, err := method.Reply(onceward.Answer{
		Status: record.Response.Status, ContentType: rpc.ContentType, Body: record.Response.Body,
	})
	if err != nil || len(reply.Header["X-Bytes-Bin"]) != 1 || reply.Header["X-Bytes-Bin"][0] != bytes {
		t.Errorf("stored are %q, error %v", reply.Header, err)
	}
}
