package onceward_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func TestWhatAHandlerKnows(t *testing.T) {
	t.Parallel()
	var op *onceward.Operation
	handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
		op = onceward.FromContext(r.Context())
		if err := op.CheckLease(); err != nil {
			t.Errorf("S5: %v", err)
		}
		op.SetProviderID("ch_123")
	}}
	var log bytes.Buffer
	store := memory.New()
	guard := newGuard(t, store, loggedTo(&log), func(c *onceward.Config) {
		c.TraceID = func(context.Context) string { return "trace-1" }
	})
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard.Handler(handler, reserved))
	post(mux, `"the key"`, `{}`)
	rec, err := store.Get(context.Background(), aliceID("the key"))
	if err != nil {
		t.Fatal(err)
	}
	if op.Key() != "the key" || op.Scope() != "alice" || op.Name() != "POST /payments" || op.Resumed() {
		t.Errorf("section 1: the handler sees key %q, scope %q, name %q, resumed %t", op.Key(), op.Scope(), op.Name(),
			op.Resumed())
	}
	if op.Attempt() == 0 || op.Attempt() != rec.Attempt {
		t.Errorf("section 1: the handler's attempt is %d, the record's %d", op.Attempt(), rec.Attempt)
	}
	op.Logger().Info("the handler's")
	if line := fmt.Sprintf(`msg="the handler's" operation="POST /payments" key_hash=%s attempt=%d`, rec.Hash(),
		rec.Attempt); !strings.Contains(log.String(), line) {
		t.Errorf("M3: the log is %s, want %s", log.String(), line)
	}
	if point, data := op.Point(); point != "" || data != nil {
		t.Errorf("E3: a first attempt starts at %q with %q", point, data)
	}
	if rec.ProviderID != "ch_123" || rec.TraceID != "trace-1" || rec.Operation != "POST /payments" {
		t.Errorf("section 11: the record keeps provider %q, trace %q, operation %q", rec.ProviderID, rec.TraceID,
			rec.Operation)
	}
}

func TestOperationsThatAreNone(t *testing.T) {
	t.Parallel()
	op := onceward.FromContext(context.Background())
	if op != nil {
		t.Fatalf("an operation in an empty context: %+v", op)
	}
	op.NotExecuted()
	op.Unknown()
	op.KeepWrites()
	op.Retain(time.Hour)
	op.SetProviderID("x")
	point, data := op.Point()
	if op.Key() != "" || op.Scope() != "" || op.Name() != "" || op.Attempt() != 0 || op.Resumed() || point != "" ||
		data != nil ||
		op.Logger() != slog.Default() || op.DownstreamKey("x") != "" || op.CheckLease() != nil {
		t.Error("the methods of no operation do not answer as those of an unprotected request")
	}
}

// TestLongReasons: a record keeps the beginning of a long error, however the error becomes the reason.
func TestLongReasons(t *testing.T) {
	t.Parallel()
	long := errors.New("the bank did not answer " + strings.Repeat("\xff…", 1<<18))
	for name, then := range map[string]func(op *onceward.Operation) error{
		"an error":          func(*onceward.Operation) error { return long },
		"an unknown one":    func(*onceward.Operation) error { return onceward.OutcomeUnknown(long) },
		"one without work":  func(*onceward.Operation) error { return onceward.NotExecuted(long) },
		"SetReason":         func(op *onceward.Operation) error { op.SetReason(long.Error()); op.NotExecuted(); return nil },
		"HandlerFailed":     func(op *onceward.Operation) error { op.HandlerFailed(long); op.Unknown(); return nil },
		"SetReason, unsure": func(op *onceward.Operation) error { op.SetReason(long.Error()); op.Unknown(); return nil },
	} {
		s := memory.New()
		_, err := newGuard(t, s).Do(t.Context(), someCall, func(ctx context.Context) ([]byte, error) {
			return nil, then(onceward.FromContext(ctx))
		}, reserved)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		rec, err := s.Get(t.Context(), store.ID{Scope: someCall.Scope, Key: someCall.Key})
		if err != nil || len(rec.LastError) > 1000 || !utf8.ValidString(rec.LastError) ||
			!strings.HasPrefix(rec.LastError, "the bank did not answer") || !strings.HasSuffix(rec.LastError, " …") {
			t.Errorf("%s: a reason of %d bytes, %.50q: %v", name, len(rec.LastError), rec.LastError, err)
		}
	}
}
