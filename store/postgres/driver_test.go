package postgres

import (
	"bytes"
	"log/slog"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/onceward/onceward/internal/servers"
)

// builtWith is what a program knows of itself that was built with a driver, as it stands in its go.mod. The build info
// of a test names no modules.
func builtWith(driver *debug.Module) *debug.BuildInfo {
	return &debug.BuildInfo{Deps: []*debug.Module{{Path: "github.com/jackc/puddle/v2", Version: "v2.2.3"}, driver}}
}

func TestDriverVersion(t *testing.T) {
	t.Parallel()
	replaced := func(path, version string) *debug.Module {
		return &debug.Module{Path: driverModule, Version: "v5.12.0", Replace: &debug.Module{Path: path, Version: version}}
	}
	tests := map[string]struct {
		driver *debug.Module
		want   int
	}{
		"a release":                  {&debug.Module{Path: driverModule, Version: "v5.12.0"}, 12},
		"the oldest":                 {&debug.Module{Path: driverModule, Version: "v5.8.0"}, 8},
		"a commit after a release":   {&debug.Module{Path: driverModule, Version: "v5.9.3-0.20260601000000-0123456789ab"}, 9},
		"replaced by a release":      {replaced(driverModule, "v5.8.0"), 8},
		"replaced by a fork":         {replaced("example.com/pgx/v5", "v5.12.1"), -1},
		"replaced by a directory":    {replaced("../pgx", ""), -1},
		"worked on":                  {&debug.Module{Path: driverModule, Version: "(devel)"}, -1},
		"of a major version to come": {&debug.Module{Path: "github.com/jackc/pgx/v6", Version: "v6.0.0"}, -1},
		"without a minor version":    {&debug.Module{Path: driverModule, Version: "v5."}, -1},
	}
	for name, test := range tests {
		if version, minor := driverVersion(builtWith(test.driver)); minor != test.want {
			t.Errorf("a driver that is %s: %q has the minor version %d, want %d", name, version, minor, test.want)
		}
	}
	if _, minor := driverVersion(&debug.BuildInfo{}); minor != -1 {
		t.Errorf("a program that does not know its modules has the minor version %d", minor)
	}
}

// TestWarningOfADriverThatRepeats: who hands over a *sql.DB is told of a driver that repeats, and no one else.
func TestWarningOfADriverThatRepeats(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	overSQL := func(option ...Option) (*Store, error) { return NewSQL(t.Context(), db, option...) }
	accepted := func(option ...Option) (*Store, error) { return overSQL(append(option, WithRepeatingDriver())...) }
	overPool := func(option ...Option) (*Store, error) { return New(t.Context(), pool, option...) }
	for _, test := range []struct {
		name, version string
		open          func(...Option) (*Store, error)
		warned        bool
	}{
		{"database/sql, and a driver that repeats", "v5.12.0", overSQL, true},
		{"database/sql, and a driver that repeats, as is known", "v5.12.0", accepted, false},
		{"database/sql, and one that does not", "v5.8.0", overSQL, false},
		{"database/sql, and one that cannot be told", "(devel)", overSQL, false},
		{"a pool, and a driver that repeats", "v5.12.0", overPool, false},
	} {
		var said bytes.Buffer
		s, err := test.open(WithLogger(slog.New(slog.NewTextHandler(&said, nil))), func(o *options) {
			o.buildInfo = func() (*debug.BuildInfo, bool) {
				return builtWith(&debug.Module{Path: driverModule, Version: test.version}), true
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		warned := strings.Contains(said.String(), "level=WARN") && strings.Contains(said.String(), "pgx="+test.version)
		if warned != test.warned {
			t.Errorf("%s: warned %t, want %t: %s", test.name, warned, test.warned, &said)
		}
	}
}
