// Package callers_test tests the tools of callers on real databases: durable operations of the client, tool calls of the
// Model Context Protocol whose servers are killed and whose replies are lost, and the kit that checks the handlers of
// users.
package callers_test

import (
	"log/slog"
	"testing"
)

var quiet = slog.New(slog.DiscardHandler)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
