package onceward_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/onceward/onceward"
)

// TestNoOperation: a method that sets something without an operation logs the line that called it, once. The test changes the
// default logger, so it does not run beside others.
func TestNoOperation(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	onceward.ForgetMissed()
	op := onceward.FromContext(t.Context())
	for name, call := range map[string]func(){
		"NotExecuted":   func() { op.NotExecuted() },
		"Reject":        func() { op.Reject() },
		"Unknown":       func() { op.Unknown() },
		"KeepWrites":    func() { op.KeepWrites() },
		"Retain":        func() { op.Retain(1) },
		"SetReason":     func() { op.SetReason("r") },
		"SetProviderID": func() { op.SetProviderID("p") },
		"DownstreamKey": func() { op.DownstreamKey("charge") },
		"NeverExecuted": func() { op.NeverExecuted() },
		"SetReference":  func() { op.SetReference("r") },
		"Carry": func() {
			if err := op.Carry(t.Context(), "v"); err != nil {
				t.Errorf("Carry without an operation is %v, want no error", err)
			}
		},
	} {
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		call()
		if got := log.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "operation_missing_test.go:") {
			t.Errorf("%s logs %q, want an error that names this file", name, got)
		}
		log.Reset()
		if call(); log.Len() != 0 { // the client of a route with KeyOptional decides how often
			t.Errorf("%s logs again: %q", name, &log)
		}
	}
}
