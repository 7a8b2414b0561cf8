package routers_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/store/sqlite"
)

// outer is an interceptor in front of the guard's: it expects the type of the response, and sets a field of its own.
type outer struct {
	connect.Interceptor // the guard's
	t                   *testing.T
	calls               atomic.Int64
}

// WrapUnary implements [connect.Interceptor].
func (o *outer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	next = o.Interceptor.WrapUnary(next)
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		info, ok := connect.CallInfoForHandlerContext(ctx)
		if !ok {
			o.t.Error("there is nothing about the call")
		}
		info.ResponseHeader().Set("X-Call", strconv.FormatInt(o.calls.Add(1), 10))
		got, err := next(ctx, r)
		if err == nil {
			if _, ok := got.(*response); !ok {
				o.t.Errorf("the response is a %T", got)
			}
			if _, ok := got.Any().(*paymentpb.Receipt); !ok {
				o.t.Errorf("the message is a %T", got.Any())
			}
		}
		return got, err
	}
}

// TestOneAnswerForAllProtocols: a call by one protocol, format and compression is the same call by every other, and so
// is its answer, with all that goes before and behind it.
func TestOneAnswerForAllProtocols(t *testing.T) {
	t.Parallel()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "protocols.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	guard, err := onceward.New(s, onceward.Config{
		Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	interceptor := &outer{Interceptor: connectProtection(t, guard, onceward.Transactional()), t: t}
	var runs atomic.Int64
	server := startConnect(t, interceptor, func(ctx context.Context, r *request) (*response, error) {
		info, _ := connect.CallInfoForHandlerContext(ctx)
		info.ResponseHeader().Set("X-Info", fmt.Sprint("run ", runs.Add(1)))
		info.ResponseTrailer().Set("X-Cost", "2")
		if r.Msg.GetAmount() < 0 {
			failed := connect.NewError(connect.CodeNotFound, errors.New("no such account"))
			failed.Meta().Set("X-Why", "so")
			detail, err := connect.NewErrorDetail(wrapperspb.String("a detail"))
			if err != nil {
				return nil, err
			}
			failed.AddDetail(detail)
			return nil, failed
		}
		answer := connect.NewResponse(&paymentpb.Receipt{
			Body: make([]byte, 2000), Labels: map[string]string{"a": "1", "b": "2"}, Status: 201,
		})
		answer.Header().Set("Location", "/7")
		answer.Header().Set("Set-Cookie", "secret")
		answer.Trailer().Set("X-More", "3")
		return answer, nil
	})
	kinds := []struct {
		name    string
		options []connect.ClientOption
	}{
		{"JSON", []connect.ClientOption{connect.WithProtoJSON()}},
		{"JSON, gzip", []connect.ClientOption{connect.WithProtoJSON(), connect.WithSendGzip()}},
		{"binary", nil},
		{"gRPC", []connect.ClientOption{connect.WithGRPC()}},
		{"gRPC, gzip", []connect.ClientOption{connect.WithGRPC(), connect.WithSendGzip()}},
		{"gRPC-Web", []connect.ClientOption{connect.WithGRPCWeb()}},
		{"gRPC, JSON", []connect.ClientOption{connect.WithGRPC(), connect.WithProtoJSON()}},
	}
	var first *response
	for i, kind := range kinds {
		replayed := ""
		if i > 0 {
			replayed = "true"
		}
		got, err := dialConnect(server, kind.options...).create.CallUnary(t.Context(), connectPayment(7, "pays"))
		if err != nil {
			t.Fatalf("%s: %v", kind.name, err)
		}
		if first == nil {
			first = got
		}
		if !proto.Equal(got.Msg, first.Msg) {
			t.Errorf("%s: got %v, want %v", kind.name, got.Msg, first.Msg)
		}
		for name, want := range map[string]string{
			"X-Info": "run 1", "Location": "/7", "X-Call": strconv.Itoa(i + 1), "Idempotent-Replayed": replayed,
		} {
			if values := got.Header().Values(name); len(values) > 1 || got.Header().Get(name) != want {
				t.Errorf("%s: %s is %q, want %q", kind.name, name, values, want)
			}
		}
		if got.Trailer().Get("X-Cost") != "2" || got.Trailer().Get("X-More") != "3" {
			t.Errorf("%s: the trailer is %v", kind.name, got.Trailer())
		}
		if cookie := got.Header().Get("Set-Cookie"); (cookie == "") != (i > 0) {
			t.Errorf("%s: the cookie is %q", kind.name, cookie)
		}
	}
	for i, kind := range kinds {
		_, err := dialConnect(server, kind.options...).create.CallUnary(t.Context(), connectPayment(-1, "fails"))
		failed := (*connect.Error)(nil)
		if !errors.As(err, &failed) || failed.Code() != connect.CodeNotFound || failed.Message() != "no such account" {
			t.Fatalf("%s: got %v", kind.name, err)
		}
		if replayed := failed.Meta().Get("Idempotent-Replayed"); (replayed == "true") != (i > 0) {
			t.Errorf("%s: got %v", kind.name, failed.Meta())
		}
		for _, name := range []string{"X-Info", "X-Why", "X-Call"} {
			if len(failed.Meta().Values(name)) != 1 {
				t.Errorf("%s: %s is %q", kind.name, name, failed.Meta().Values(name))
			}
		}
		detail, err := failed.Details()[0].Value()
		if err != nil || detail.(*wrapperspb.StringValue).GetValue() != "a detail" {
			t.Errorf("%s: the detail is %v, error %v", kind.name, detail, err)
		}
	}
	if runs.Load() != 2 {
		t.Errorf("%d runs, want 2", runs.Load())
	}
}

func connectPayment(amount int64, key string) *request {
	r := connect.NewRequest(&paymentpb.Payment{Amount: amount, Labels: map[string]string{"x": "1", "y": "2", "z": "3"}})
	r.Header().Set("Authorization", "alice")
	r.Header().Set("Idempotency-Key", key)
	return r
}

// TestChallenge: a caller who is not known is told how to become known.
func TestChallenge(t *testing.T) {
	t.Parallel()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "challenge.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	guard, err := onceward.New(s, onceward.Config{Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit})
	if err != nil {
		t.Fatal(err)
	}
	protect := connectProtection(t, guard, onceward.Transactional())
	server := startConnect(t, protect, func(context.Context, *request) (*response, error) {
		t.Error("executed")
		return nil, context.Canceled
	})
	r := connectPayment(7, "k")
	r.Header().Del("Authorization")
	_, err = dialConnect(server).create.CallUnary(t.Context(), r)
	failed := (*connect.Error)(nil)
	if !errors.As(err, &failed) || failed.Code() != connect.CodeUnauthenticated ||
		failed.Meta().Get("WWW-Authenticate") != `Bearer realm="payments"` {
		t.Errorf("got %v", err)
	}
}
