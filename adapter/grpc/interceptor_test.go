package oncewardgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onceward/onceward"
	oncewardgrpc "github.com/onceward/onceward/adapter/grpc"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

const create = "/onceward.test.Payments/Create"

func newGuard(t testing.TB, s store.Store) *onceward.Guard {
	t.Helper()
	guard, err := onceward.New(s, onceward.Config{
		Secret: []byte("the secret of the tests"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

func scope(context.Context, string) (string, error) { return "tenant", nil }

func methods(options ...onceward.Option) map[string]oncewardgrpc.Method {
	return map[string]oncewardgrpc.Method{create: {Options: options, RequestID: "request_id"}}
}

func protection(t testing.TB, s store.Store, options ...onceward.Option) *oncewardgrpc.Interceptor {
	t.Helper()
	protect, err := oncewardgrpc.New(newGuard(t, s), oncewardgrpc.Config{Scope: scope, Methods: methods(options...)})
	if err != nil {
		t.Fatal(err)
	}
	return protect
}

func TestNew(t *testing.T) {
	t.Parallel()
	reserved := onceward.Reserved(onceward.FailureUnknown)
	streams := map[string]oncewardgrpc.Method{"/onceward.test.Payments/Watch": {Options: []onceward.Option{reserved}}}
	for want, config := range map[string]oncewardgrpc.Config{
		"Config.Scope is missing":             {Methods: methods(reserved)},
		"Config.Methods is empty":             {Scope: scope},
		"only unary methods can be protected": {Scope: scope, Methods: streams},
		"needs a store that shares":           {Scope: scope, Methods: methods(onceward.Transactional())},
		"the route has no mode of execution":  {Scope: scope, Methods: methods()},
	} {
		_, err := oncewardgrpc.New(newGuard(t, memory.New()), config)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	protect := protection(t, memory.New(), onceward.Reserved(onceward.FailureUnknown))
	services := map[string]grpc.ServiceInfo{"onceward.test.Payments": {Methods: []grpc.MethodInfo{
		{Name: "Watch", IsServerStream: true}, {Name: "Refund"}, {Name: "Create"}, {Name: "Get"},
	}}}
	const refund, watch = "/onceward.test.Payments/Refund", "/onceward.test.Payments/Watch"
	if got := protect.Audit(services); !slices.Equal(got, []string{refund, watch}) {
		t.Errorf("got %q", got)
	}
	if got := protect.Audit(services, watch, refund); len(got) != 0 {
		t.Errorf("those that are exempt are listed: %q", got)
	}
}

// stream is that of a call: it keeps what would be sent.
type stream struct {
	header, trailer metadata.MD
}

func (*stream) Method() string { return create }
func (s *stream) SetHeader(md metadata.MD) error {
	s.header = metadata.Join(s.header, md)
	return nil
}
func (s *stream) SendHeader(md metadata.MD) error { return s.SetHeader(md) }
func (s *stream) SetTrailer(md metadata.MD) error {
	s.trailer = metadata.Join(s.trailer, md)
	return nil
}

// call calls the interceptor as a server does.
func call(
	protect *oncewardgrpc.Interceptor, key string, handler grpc.UnaryHandler,
) (reply any, sent *stream, err error) {
	sent = new(stream)
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("idempotency-key", key))
	reply, err = protect.Unary(grpc.NewContextWithServerTransportStream(ctx, sent), &paymentpb.Payment{Amount: 7},
		&grpc.UnaryServerInfo{FullMethod: create}, handler)
	return reply, sent, err
}

// TestHeaderWaits: what the handler sets, or thinks to send, waits until its outcome is durable; a replay has it too.
func TestHeaderWaits(t *testing.T) {
	t.Parallel()
	protect := protection(t, memory.New(), onceward.Reserved(onceward.FailureUnknown))
	set := func(ctx context.Context) error {
		return errors.Join(
			grpc.SetHeader(ctx, metadata.Pairs("location", "/7")),
			grpc.SendHeader(ctx, metadata.Pairs("x-more", "1", "set-cookie", "secret")),
			grpc.SetTrailer(ctx, metadata.Pairs("x-cost", "2", "x-bytes-bin", "\x00\xff")))
	}
	for i := range 2 {
		outer := new(stream)
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("idempotency-key", "k"))
		ctx = grpc.NewContextWithServerTransportStream(ctx, outer)
		_, err := protect.Unary(ctx, &paymentpb.Payment{}, &grpc.UnaryServerInfo{FullMethod: create},
			func(ctx context.Context, _ any) (any, error) {
				if err := set(ctx); err != nil {
					t.Error(err)
				}
				if err := grpc.SetHeader(ctx, metadata.Pairs("late", "1")); err == nil {
					t.Error("a header is set behind one that was sent")
				}
				if got, _ := grpc.Method(ctx); got != create {
					t.Errorf("the handler is told that it is %s", got)
				}
				if len(outer.header) > 0 || len(outer.trailer) > 0 {
					t.Errorf("sent before the outcome is stored: %v %v", outer.header, outer.trailer)
				}
				return &paymentpb.Receipt{}, nil
			})
		if err != nil {
			t.Fatal(err)
		}
		if got := outer.header; got.Get("location")[0] != "/7" || got.Get("x-more")[0] != "1" || got.Get("late") != nil {
			t.Errorf("call %d: the header is %v", i, got)
		}
		if got := outer.trailer; got.Get("x-cost")[0] != "2" || got.Get("x-bytes-bin")[0] != "\x00\xff" {
			t.Errorf("call %d: the trailer is %v", i, got)
		}
		if got := len(outer.header.Get("set-cookie")); got != 1-i {
			t.Errorf("call %d: %d cookies", i, got)
		}
		if got := len(outer.header.Get("idempotent-replayed")); got != i {
			t.Errorf("call %d: the header is %v", i, outer.header)
		}
		if _, err := http.ParseTime(outer.header.Get("idempotency-key-expires")[0]); err != nil {
			t.Error(err)
		}
	}
}

// TestCodes is the table of what a handler's code means, for each meaning of a failure: whether a retry runs, gets the
// same answer, or is told that the outcome is not known.
func TestCodes(t *testing.T) {
	t.Parallel()
	const stored, runs, unknown = "stored", "runs", "unknown"
	for code, want := range map[codes.Code][3]string{ // FailureStore, FailureRetry, FailureUnknown
		codes.OK:                 {stored, stored, stored},
		codes.Canceled:           {unknown, runs, unknown},
		codes.Unknown:            {stored, runs, unknown},
		codes.InvalidArgument:    {stored, stored, stored},
		codes.DeadlineExceeded:   {unknown, runs, unknown},
		codes.NotFound:           {stored, stored, stored},
		codes.AlreadyExists:      {stored, stored, stored},
		codes.PermissionDenied:   {stored, stored, stored},
		codes.ResourceExhausted:  {runs, runs, runs},
		codes.FailedPrecondition: {stored, stored, stored},
		codes.Aborted:            {stored, stored, stored},
		codes.OutOfRange:         {stored, stored, stored},
		codes.Unimplemented:      {stored, runs, unknown},
		codes.Internal:           {stored, runs, unknown},
		codes.Unavailable:        {runs, runs, unknown},
		codes.DataLoss:           {stored, runs, unknown},
		codes.Unauthenticated:    {runs, runs, runs},
	} {
		for i, failure := range []onceward.Failure{onceward.FailureStore, onceward.FailureRetry, onceward.FailureUnknown} {
			protect := protection(t, memory.New(), onceward.Reserved(failure))
			got := retryOf(protect, func() (any, error) {
				if code == codes.OK {
					return &paymentpb.Receipt{}, nil
				}
				return nil, status.Error(code, "why")
			})
			if got != want[i] {
				t.Errorf("%s, failure %d: got %s, want %s", code, failure, got, want[i])
			}
		}
	}
}

// retryOf says what becomes of a retry after an answer.
func retryOf(protect *oncewardgrpc.Interceptor, answer func() (any, error)) string {
	ran := 0
	handler := func(context.Context, any) (any, error) {
		ran++
		return answer()
	}
	_, _, first := call(protect, "k", handler)
	_, sent, err := call(protect, "k", handler)
	switch {
	case ran == 2:
		return "runs"
	case len(sent.header.Get("idempotent-replayed")) == 1 && status.Code(err) == status.Code(first) &&
		status.Convert(err).Message() == status.Convert(first).Message():
		return "stored"
	case status.Code(err) == codes.Unknown && strings.Contains(err.Error(), "outcome"):
		return "unknown"
	default:
		return err.Error()
	}
}

// TestErrorsSay: an error's own word goes before its code, and errors without a code have that of the server.
func TestErrorsSay(t *testing.T) {
	t.Parallel()
	coded := status.Error(codes.NotFound, "why")
	for want, test := range map[string]struct {
		failure onceward.Failure
		err     error
	}{
		"runs":    {onceward.FailureStore, onceward.NotExecuted(coded)},
		"unknown": {onceward.FailureRetry, onceward.OutcomeUnknown(coded)},
		"stored":  {onceward.FailureStore, errors.New("without a code")},
	} {
		protect := protection(t, memory.New(), onceward.Reserved(test.failure))
		if got := retryOf(protect, func() (any, error) { return nil, test.err }); got != want {
			t.Errorf("%v: got %s, want %s", test.err, got, want)
		}
	}
	protect := protection(t, memory.New(), onceward.Reserved(onceward.FailureStore))
	if got := retryOf(protect, func() (any, error) { return nil, onceward.Rejected(coded) }); got != "runs" {
		t.Errorf("rejected: got %s", got)
	}
	if got := retryOf(protect, func() (any, error) { return nil, context.Canceled }); got != "unknown" {
		t.Errorf("cancelled: got %s", got)
	}
}

// TestUnsendable: a reply that is none is a failure, and never an answer to be replayed as something else.
func TestUnsendable(t *testing.T) {
	t.Parallel()
	for _, reply := range []any{nil, "text", (*paymentpb.Receipt)(nil), &paymentpb.Payment{}} {
		protect := protection(t, memory.New(), onceward.Reserved(onceward.FailureUnknown))
		_, _, err := call(protect, "k", func(context.Context, any) (any, error) { return reply, nil })
		if status.Code(err) != codes.Internal {
			t.Errorf("%T: got %v", reply, err)
		}
		if got := retryOf(protect, func() (any, error) { return &paymentpb.Receipt{}, nil }); got != "unknown" {
			t.Errorf("%T: a retry: %s", reply, got)
		}
	}
}

// TestResolved: what a resolver or an operator gave as the answer is replayed, and what cannot be read is told.
func TestResolved(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		contentType, body string
		want              codes.Code
	}{
		"in JSON":           {"application/json", `{"status": 201}`, codes.OK},
		"in another format": {"text/plain", "done", codes.Internal},
	} {
		s := memory.New()
		protect := protection(t, s, onceward.Reserved(onceward.FailureUnknown))
		_, _, _ = call(protect, "k", func(ctx context.Context, _ any) (any, error) {
			onceward.FromContext(ctx).Unknown()
			return nil, status.Error(codes.Internal, "lost")
		})
		id := store.ID{Scope: "tenant", Key: "k"}
		record, err := s.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.ResolveCompleted(t.Context(), store.Claim{ID: id, Attempt: record.Attempt}, &store.Completion{
			Response: store.Response{
				Status: http.StatusOK, Body: []byte(test.body),
				Header: []store.HeaderField{{Name: "Content-Type", Value: test.contentType}},
			},
		}); err != nil {
			t.Fatal(err)
		}
		reply, _, err := call(protect, "k", func(context.Context, any) (any, error) {
			t.Errorf("%s: executed", what)
			return nil, nil
		})
		if status.Code(err) != test.want {
			t.Errorf("%s: got %v", what, err)
		}
		if test.want != codes.OK {
			continue
		}
		if receipt, ok := reply.(*paymentpb.Receipt); !ok || receipt.GetStatus() != 201 {
			t.Errorf("%s: got %v", what, reply)
		}
	}
}

// TestAudited: the audit of executions says who called, and pollers know the names of methods.
func TestAudited(t *testing.T) {
	t.Parallel()
	for want, actor := range map[string]func(context.Context, string) string{
		"tenant": nil, "ada": func(context.Context, string) string { return "ada" },
	} {
		s := memory.New()
		guard := newGuard(t, s)
		protect, err := oncewardgrpc.New(guard, oncewardgrpc.Config{Scope: scope, Actor: actor, Methods: methods(
			onceward.Reserved(onceward.FailureUnknown), onceward.AuditExecutions(nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := guard.CheckOperations(create); err != nil {
			t.Error(err)
		}
		if err := guard.CheckOperations(create + "d"); !errors.Is(err, onceward.ErrMisconfigured) {
			t.Errorf("a name that does not exist: %v", err)
		}
		_, _, _ = call(protect, "k", func(context.Context, any) (any, error) { return &paymentpb.Receipt{}, nil })
		entries, err := s.ListExecutions(t.Context(), store.AuditFilter{})
		if err != nil || len(entries) != 1 || entries[0].Actor != want || entries[0].Operation != create {
			t.Errorf("got %+v, error %v, want %s", entries, err, want)
		}
	}
}

// TestMethodWithAName: a key belongs to the name that an option gives an operation.
func TestMethodWithAName(t *testing.T) {
	t.Parallel()
	s := memory.New()
	reply := func(context.Context, any) (any, error) { return &paymentpb.Receipt{Status: 7}, nil }
	if _, _, err := call(protection(t, s, onceward.Reserved(onceward.FailureUnknown),
		onceward.OperationName("/onceward.test.Payments/Make")), "k", reply); err != nil {
		t.Fatal(err)
	}
	other := protection(t, s, onceward.Reserved(onceward.FailureUnknown),
		onceward.OperationName("/onceward.test.Payments/Make"))
	if _, sent, err := call(other, "k", reply); err != nil || len(sent.header.Get("idempotent-replayed")) != 1 {
		t.Errorf("got %v, error %v", sent.header, err)
	}
	if _, _, err := call(protection(t, s, onceward.Reserved(onceward.FailureUnknown)), "k", reply); status.Code(err) !=
		codes.FailedPrecondition {
		t.Errorf("under another name: %v", err)
	}
}

// TestScopesThatFail: an error of a scope function that has a code of its own means what it says.
func TestScopesThatFail(t *testing.T) {
	t.Parallel()
	for want, failed := range map[codes.Code]error{
		codes.Unauthenticated:  status.Error(codes.Unauthenticated, "who?"),
		codes.PermissionDenied: fmt.Errorf("scope: %w", status.Error(codes.PermissionDenied, "not you")),
		codes.Unavailable:      errors.New("the directory is down"),
	} {
		protect, err := oncewardgrpc.New(newGuard(t, memory.New()), oncewardgrpc.Config{
			Scope:   func(context.Context, string) (string, error) { return "", failed },
			Methods: methods(onceward.Reserved(onceward.FailureUnknown)),
		})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = call(protect, "k", func(context.Context, any) (any, error) {
			t.Error("executed")
			return nil, nil
		})
		if status.Code(err) != want {
			t.Errorf("%v: got %v", failed, err)
		}
	}
}

// TestReason: an operator who has to settle an outcome finds what the handler said.
func TestReason(t *testing.T) {
	t.Parallel()
	s := memory.New()
	protect := protection(t, s, onceward.Reserved(onceward.FailureRetry))
	_, _, _ = call(protect, "k", func(context.Context, any) (any, error) {
		return nil, onceward.OutcomeUnknown(errors.New("the provider hung up"))
	})
	record, err := s.Get(t.Context(), store.ID{Scope: "tenant", Key: "k"})
	if err != nil || record.State != store.StateUnknown || record.LastError != "the provider hung up" {
		t.Errorf("got %s, %q, error %v", record.State, record.LastError, err)
	}
}
