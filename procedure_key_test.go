package onceward_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// TestProcedureWithAGivenKey: the rules for keys hold also for one that came in no header.
func TestProcedureWithAGivenKey(t *testing.T) {
	t.Parallel()
	guard, err := onceward.New(memory.New(), onceward.Config{
		Secret: []byte("0123456789abcdef"), Logger: slog.New(slog.DiscardHandler),
		Keys: onceward.KeyRules{Syntax: onceward.SyntaxStrict, MinLength: 8, RefusePersonalData: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	procedure, err := guard.Procedure(onceward.Reserved(onceward.FailureUnknown))
	if err != nil {
		t.Fatal(err)
	}
	for key, code := range map[string]string{
		"long enough": "", "short": "invalid-key", "with\x00zero": "invalid-key", "nötigenfalls": "invalid-key",
		strings.Repeat("k", 256): "invalid-key", "ada@example.com": "personal-data-key",
	} {
		call := onceward.Call{Scope: "s", Key: key, Operation: "pay"}
		_, err := procedure.Serve(t.Context(), call, func(context.Context) onceward.Answer { return onceward.Answer{} })
		var problem *onceward.Problem
		if errors.As(err, &problem) != (code != "") || problem != nil && problem.Code != code {
			t.Errorf("the key %q got %v, want %q", key, err, code)
		}
	}
}

// TestProcedureSaysUnknown: an answer that is returned although the outcome is unknown is marked so.
func TestProcedureSaysUnknown(t *testing.T) {
	t.Parallel()
	guard, err := onceward.New(memory.New(), onceward.Config{
		Secret: []byte("0123456789abcdef"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		failure onceward.Failure
		unknown bool
	}{
		"unknown": {onceward.FailureUnknown, true}, "retry": {onceward.FailureRetry, false},
		"store": {onceward.FailureStore, false},
	} {
		procedure, err := guard.Procedure(onceward.Reserved(tc.failure))
		if err != nil {
			t.Fatal(err)
		}
		served, err := procedure.Serve(t.Context(), onceward.Call{Scope: "s", Key: name, Operation: "pay"},
			func(context.Context) onceward.Answer { return onceward.Answer{Status: http.StatusInternalServerError} })
		if err != nil || served.Status != http.StatusInternalServerError || served.Unknown != tc.unknown {
			t.Errorf("%s: got %+v, %v", name, served, err)
		}
	}
}

// TestIsOutcomeUnknown: the mark counts wherever it is in an error.
func TestIsOutcomeUnknown(t *testing.T) {
	t.Parallel()
	plain := errors.New("it broke")
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{plain, false},
		{onceward.NotExecuted(plain), false},
		{onceward.OutcomeUnknown(plain), true},
		{errors.Join(onceward.NotExecuted(plain), onceward.OutcomeUnknown(plain)), true},
	} {
		if got := onceward.IsOutcomeUnknown(tc.err); got != tc.want {
			t.Errorf("%v: got %t", tc.err, got)
		}
	}
}
