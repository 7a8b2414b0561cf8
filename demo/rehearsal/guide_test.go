package rehearsal

import (
	"strings"
	"testing"
)

// TestAgain: the line can be pasted, and does not tell the password.
func TestAgain(t *testing.T) {
	t.Parallel()
	program := Program{GoRun: "go run ./program", Command: "demo"}
	for _, test := range []struct {
		config Config
		dir    directory
		want   string
		hint   bool
	}{
		{Config{InFlight: "conflict", Processes: 1}, directory{temporary: true}, "demo --seed 7", false},
		{
			Config{InFlight: "wait", Processes: 3, Unprotected: true},
			directory{temporary: true},
			"demo --seed 7 --processes 3 --in-flight wait --unprotected", false,
		},
		{Config{}, directory{path: "/data/it's mine"}, `demo --seed 7 --dir '/data/it'\''s mine'`, false},
		{
			Config{Store: "postgres://me@host/db?sslmode=disable"},
			directory{temporary: true},
			"demo --seed 7 --store 'postgres://me@host/db?sslmode=disable'", false,
		},
		{Config{Store: "postgres://me:s3cret@host/db"}, directory{temporary: true}, "demo --seed 7 --store postgres://me@host/db", true},
		{Config{Store: "postgres://me@host/db?password=s3cret"}, directory{temporary: true}, "demo --seed 7 --store postgres://me@host/db", true},
		{
			Config{Store: "postgres://me:s3cret@host/db?options=-c%20jit=off"}, // pgx takes a plus sign as it stands
			directory{temporary: true},
			"demo --seed 7 --store 'postgres://me@host/db?options=-c%20jit%3Doff'", true,
		},
		{Config{Store: "postgres://me:s3cret%@host/db"}, directory{temporary: true}, "demo --seed 7 --store URL", true},
	} {
		w := &world{program: program, config: test.config, dir: test.dir}
		line, hint := w.again("--seed 7")
		if line != "go run ./program "+test.want || (hint != "") != test.hint || strings.Contains(line+hint, "s3cret") {
			t.Errorf("%+v: %s (%s), want %s", test.config, line, hint, test.want)
		}
	}
}
