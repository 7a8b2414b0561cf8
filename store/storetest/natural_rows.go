package storetest

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/onceward/natural"
)

// twoColumns has a key of two columns, of which either alone is not unique.
func twoColumns(e *env) {
	e.table(`CREATE TABLE lines (item INTEGER NOT NULL, shop TEXT NOT NULL, closed INTEGER NOT NULL, note TEXT, UNIQUE (shop, item))`)
	line := func(shop string, item, closed int, note string) natural.Upsert {
		return natural.Upsert{
			Table:  "lines",
			Key:    []natural.Column{{Name: "shop", Value: shop}, {Name: "item", Value: item}},
			Values: []natural.Column{{Name: "closed", Value: closed}, {Name: "note", Value: note}},
			Final:  "closed", FinalValues: []any{1, 7},
		}
	}
	e.upsert(line("x", 1, 0, "first"), natural.Inserted, "O6: there was no row")
	e.upsert(line("x", 2, 0, "second"), natural.Inserted, "O6: the same shop, another item")
	e.upsert(line("y", 1, 7, "third"), natural.Inserted, "O6: another shop, the same item")
	e.upsert(line("x", 1, 1, "closed"), natural.Updated, "O6: both columns of the key are the same")
	e.upsert(line("x", 1, 0, "again"), natural.Kept, "O6: a final state that is a number")
	e.upsert(line("y", 1, 0, "again"), natural.Kept, "O6: another final state that is a number")
	e.upsert(line("x", 2, 0, "again"), natural.Updated, "O6: its neighbours are final, it is not")
	e.wantTexts(`SELECT shop || item || ' ' || closed || ' ' || note FROM lines ORDER BY shop, item`, "O6: a key of two columns",
		"x1 1 closed", "x2 0 again", "y1 7 third")
}

// finalNotWritten has a final state that only others write.
func finalNotWritten(e *env) {
	e.table(payments, `INSERT INTO payments (id, state, amount) VALUES ('a', 'paid', 1), ('b', 'new', 1), ('c', NULL, 1)`)
	for id, want := range map[string]natural.Outcome{"a": natural.Kept, "b": natural.Updated, "c": natural.Updated, "d": natural.Inserted} {
		u := payment(id, "", 2)
		u.Values = u.Values[1:]
		e.upsert(u, want, "O6: the final state is not among the values, row "+id)
	}
	e.wantTexts(allPayments, "O6: the final state is not among the values", "a paid 1", "b new 2", "c null 2", "d null 2")
}

// oddNames has names that stand for something else in SQL if they are not quoted.
func oddNames(e *env) {
	names := []string{"select", "Größe in cm", `a"b`, "x?", "$1", ":name", "it's", "a;--", "CamelCase", "camelcase2", "a.b"}
	const table = `order "items"; -- ?`
	quote := func(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
	columns := make([]string, len(names))
	for i, name := range names {
		columns[i] = quote(name) + " TEXT"
	}
	e.table(fmt.Sprintf(`CREATE TABLE %s ("the key?" TEXT PRIMARY KEY, %s)`, quote(table), strings.Join(columns, ", ")))
	row := func(value string) natural.Upsert {
		u := natural.Upsert{
			Table: table, Key: []natural.Column{{Name: "the key?", Value: "it's"}},
			Final: "a;--", FinalValues: []any{`final ' " ; --`},
		}
		for _, name := range names {
			u.Values = append(u.Values, natural.Column{Name: name, Value: value})
		}
		return u
	}
	e.upsert(row("one"), natural.Inserted, "O6: odd names")
	e.upsert(row(`final ' " ; --`), natural.Updated, "O6: odd names")
	e.upsert(row("three"), natural.Kept, "O6: odd names and an odd final state")
	for _, name := range names {
		e.wantTexts(fmt.Sprintf(`SELECT %s FROM %s`, quote(name), quote(table)), "O6: column "+name, `final ' " ; --`)
	}
}

// manyUpserts has many write the same row at once, each in a final state: the one that inserted it is the one to go on.
func manyUpserts(e *env) {
	e.table(payments)
	const n = 16
	outcomes, errs := make([]natural.Outcome, n), make([]error, n)
	together(n, func(i int) { errs[i] = e.inTx(e.upserting(payment("a", "paid", i), &outcomes[i])) })
	winner := -1
	for i, outcome := range outcomes {
		switch {
		case errs[i] != nil:
			e.Errorf("O6: %v", errs[i])
		case outcome == natural.Inserted && winner < 0:
			winner = i
		case outcome != natural.Kept:
			e.Errorf("O6: a row that others write at the same moment was %s, want inserted once and kept by all others", outcome)
		}
	}
	e.wantTexts(allPayments, "O6: the row of the one that inserted it", fmt.Sprint("a paid ", winner))
}

// locking is work that locks a name.
func (e *env) locking(names ...string) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		for _, name := range names {
			if err := e.natural().LockName(ctx, e.tx(ctx), name); err != nil {
				return fmt.Errorf("O6: lock %.40q: %w", name, err)
			}
		}
		return nil
	}
}

// lockedNames locks names one transaction after another: a lock ends with its transaction.
func lockedNames(e *env) {
	for range 2 {
		e.committed(e.locking("a", "a", "b", "", "für 東京", `' " ; --`, strings.Repeat("long", 1000)))
		e.rolledBack(e.locking("a", "b", "a"))
	}
}

// lockWaits has a second transaction ask for a name while the first one has it, which then ends as given.
func lockWaits(e *env, verdict error) {
	end := e.begin(e.locking("a"))
	e.committed(e.locking("b", "A", "a ")) // others do not wait
	err := e.waits("O6: two transactions that lock the same name", e.locking("a"), func() error { return end(verdict) })
	e.must(err)
}
