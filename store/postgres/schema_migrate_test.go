package postgres_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// statements cuts one direction of a migration into statements by the rules of goose: each ends with a line that ends with a
// semicolon, unless it stands between marks of its own.
func statements(t testing.TB, text, direction string) (all []string) {
	t.Helper()
	var current []string
	here, marked := false, false
	for _, line := range strings.Split(text, "\n") {
		mark, isMark := strings.CutPrefix(line, "-- +goose ")
		switch {
		case isMark && (mark == "Up" || mark == "Down"):
			here = mark == direction
		case isMark && mark == "StatementBegin" && !marked:
			marked = true
		case isMark && mark == "StatementEnd" && marked:
			marked = false
			all, current = append(all, strings.Join(current, "\n")), nil
		case isMark:
			t.Fatalf("%q is out of place", line)
		case !here || !marked && strings.HasPrefix(strings.TrimSpace(line), "--"):
		default:
			if current = append(current, line); !marked && strings.HasSuffix(strings.TrimSpace(line), ";") {
				all, current = append(all, strings.Join(current, "\n")), nil
			}
		}
	}
	if rest := strings.TrimSpace(strings.Join(current, "\n")); rest != "" || marked {
		t.Fatalf("the migration ends in the middle of %q", rest)
	}
	return all
}

// migrate applies migrations as a tool like goose does: statement by statement, in the order of their names or, downwards,
// against it.
func migrate(t testing.TB, pool *pgxpool.Pool, direction string) {
	t.Helper()
	files, err := fs.Glob(postgres.Migrations(), "*.sql")
	must(t, err)
	if direction == "Down" {
		slices.Reverse(files)
	}
	for _, file := range files {
		text, err := fs.ReadFile(postgres.Migrations(), file)
		must(t, err)
		for _, statement := range statements(t, string(text), direction) {
			exec(t, pool, statement)
		}
	}
}

// TestMigrationsByAnotherTool: tables that somebody else made are as good as our own, and nothing is left of them when they
// are taken away.
func TestMigrationsByAnotherTool(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	theirs, ours := server.SchemaURL(t), server.SchemaURL(t)
	admin, other := openAdmin(t, theirs), openAdmin(t, ours)
	migrate(t, admin, "Up")
	store := openStore(t, theirs)
	exercise(t, store, "key")
	openStore(t, ours)
	if a, b := tables(t, admin), tables(t, other); !slices.Equal(a, b) {
		t.Errorf("applied by another tool they are\n%s\nby the store\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	must(t, store.Close())
	migrate(t, admin, "Down")
	if left := tables(t, admin); len(left) != 0 {
		t.Errorf("after the way down there is still %v", left)
	}
	migrate(t, admin, "Up")
	exercise(t, openStore(t, theirs), "key")
}

func tables(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	var schema string
	must(t, pool.QueryRow(t.Context(), `SELECT current_schema()`).Scan(&schema))
	return objects(t, pool, schema)
}

// TestManualMigration: a store that does not make its tables does nothing without them, and says what to do.
func TestManualMigration(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	store := openStore(t, url, postgres.WithManualMigration())
	if made := tables(t, openAdmin(t, url)); len(made) != 0 {
		t.Errorf("opening made %v", made)
	}
	saysMigrate := func(err error) bool { return strings.Contains(err.Error(), "Migrate") }
	wantUnavailable(t, store, saysMigrate, "WithManualMigration: before Migrate")
	must(t, store.Migrate(t.Context()))
	must(t, store.Migrate(t.Context()))
	exercise(t, store, "key")
	exercise(t, openStore(t, url, postgres.WithManualMigration()), "again")
}

// TestTablesMadeMeanwhile: a store that was opened before its tables were there must not work beside them under names that
// nobody else derives: what another process has answered would be executed again.
func TestTablesMadeMeanwhile(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	early := openStore(t, url, postgres.WithManualMigration())
	other := openStore(t, url)
	transacted(t, other, "key", nothing)
	for name, decide := range map[string]func() (store.Verdict, error){
		"reserve": func() (store.Verdict, error) { return early.Reserve(t.Context(), reservation("key")) },
		"transact": func() (store.Verdict, error) {
			return early.Transact(t.Context(), reservation("key"), func(context.Context, store.Verdict) store.Settlement {
				t.Errorf("I1: transact executed again what another process has completed")
				return store.Settlement{}
			})
		},
	} {
		v, err := decide()
		if err == nil && v.Decision != store.DecisionReplay || err != nil && !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("I1: %s of what another process has completed got (%s, %v), want a replay or ErrUnavailable", name, v.Decision, err)
		}
	}
	must(t, early.Migrate(t.Context()))
	wantReplay(t, early, "key", "key", "I3")
}
