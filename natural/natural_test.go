package natural_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/natural"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

// TestCheck: an invalid upsert is refused, and the error contains the reason.
func TestCheck(t *testing.T) {
	t.Parallel()
	column := func(name string) natural.Column { return natural.Column{Name: name, Value: 1} }
	for _, test := range []struct {
		name   string
		change func(u *natural.Upsert)
		want   string
	}{
		{"all of it", func(*natural.Upsert) {}, ""},
		{"no values", func(u *natural.Upsert) { u.Values = nil }, ""},
		{"no final state", func(u *natural.Upsert) { u.Final, u.FinalValues = "", nil }, ""},
		{"a schema", func(u *natural.Upsert) { u.Schema = "shop" }, ""},
		{"a final column of no value", func(u *natural.Upsert) { u.Final = "other" }, ""},
		{"no table", func(u *natural.Upsert) { u.Table = "" }, "natural: Upsert.Table is missing"},
		{"no key", func(u *natural.Upsert) { u.Key = nil }, "natural: Upsert.Key is missing: it names the columns by which the row is found"},
		{"no column", func(u *natural.Upsert) { u.Final = "" }, "natural: Upsert.Final and Upsert.FinalValues go together"},
		{"no final values", func(u *natural.Upsert) { u.FinalValues = nil }, "natural: Upsert.Final and Upsert.FinalValues go together"},
		{"a key twice", func(u *natural.Upsert) { u.Key = append(u.Key, column("id")) }, `natural: Upsert has the column "id" twice, or without a name`},
		{"a key as value", func(u *natural.Upsert) { u.Values = append(u.Values, column("id")) }, `natural: Upsert has the column "id" twice, or without a name`},
		{"a value twice", func(u *natural.Upsert) { u.Values = append(u.Values, column("state")) }, `natural: Upsert has the column "state" twice, or without a name`},
		{"a key without a name", func(u *natural.Upsert) { u.Key[0].Name = "" }, `natural: Upsert has the column "" twice, or without a name`},
		{"a value without a name", func(u *natural.Upsert) { u.Values[0].Name = "" }, `natural: Upsert has the column "" twice, or without a name`},
	} {
		u := natural.Upsert{
			Table: "orders", Key: []natural.Column{column("id")}, Values: []natural.Column{column("state")},
			Final: "state", FinalValues: []any{"paid"},
		}
		test.change(&u)
		got := ""
		if err := u.Check(); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	var names []string
	for o := range natural.OutcomeUpdated + 2 {
		names = append(names, o.String())
	}
	if got := strings.Join(names, ", "); got != "none, kept, inserted, updated, outcome 4" {
		t.Errorf("the outcomes are %s", got)
	}
}
