package redis

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/onceward/onceward/internal/servers"
)

// TestNewerFormat: a program does not open what a newer one has written, and opens again what it has written itself.
func TestNewerFormat(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	prefix := server.Prefix(t)
	where, err := parseURL(server.URL())
	must(t, err)
	client, err := rueidis.NewClient(where.config(nil, usualPatience()))
	must(t, err)
	t.Cleanup(client.Close)
	open := func() error {
		s, err := Open(t.Context(), server.URL(), WithPrefix(prefix), WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
		if err == nil {
			err = s.Close()
		}
		return err
	}
	must(t, open())
	must(t, open())
	must(t, client.Do(t.Context(), client.B().Sadd().Key(prefix+":{000}:p").Member("format 3").Build()).Error())
	if err := open(); err == nil || !strings.Contains(err.Error(), "format 3") {
		t.Errorf("records of a newer format are opened: %v", err)
	}
}
