package postgres

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/servers"
)

// TestExecLetsGoOfArguments: arguments may be large, and a connection lives for long.
func TestExecLetsGoOfArguments(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), servers.Postgres(t).SchemaURL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	if _, err := conn.Exec(t.Context(), `CREATE TABLE business (value text, amount integer)`); err != nil {
		t.Fatal(err)
	}
	s, large := rowless(conn), strings.Repeat("large", 1000)
	for _, amount := range []any{1, 1, struct{}{}} { // the last one cannot be encoded, when the value has been
		_, err = s.exec(t.Context(), conn, `INSERT INTO business VALUES ($1, $2)`, []any{large, amount})
	}
	if err == nil || !strings.Contains(err.Error(), "encode args[1]") {
		t.Errorf("an argument that does not fit got %v", err)
	}
	values := s.query.ParamValues
	if slices.ContainsFunc(values[:cap(values)], func(v []byte) bool { return v != nil }) {
		t.Error("arguments are kept when their statements have ended")
	}
}
