package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/natural"
)

// natural returns the store as a [natural.Store].
func (e *env) natural() natural.Store { return e.Store.(natural.Store) }

// table creates a table through a transaction of the application, or outside it on a database where a DDL statement
// ends transactions.
func (e *env) table(statements ...string) {
	e.Helper()
	if e.Business != nil && e.Business.Define != nil {
		for _, statement := range statements {
			if err := e.Business.Define(statement); err != nil {
				e.Fatalf("%s: %v", statement, err)
			}
		}
		return
	}
	e.committed(func(ctx context.Context) error {
		for _, statement := range statements {
			if _, err := onceward.Tx(ctx).ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	})
}

// texts returns the first column of the rows of a query.
func (e *env) texts(query string) (found []string) {
	e.Helper()
	e.committed(func(ctx context.Context) error {
		found = nil
		rows, err := onceward.Tx(ctx).QueryContext(ctx, query)
		if err != nil {
			return fmt.Errorf("%s: %w", query, err)
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var text string
			if err := rows.Scan(&text); err != nil {
				return err
			}
			found = append(found, text)
		}
		return rows.Err()
	})
	return found
}

// wantTexts checks the result of a query.
func (e *env) wantTexts(query, rule string, want ...string) {
	e.Helper()
	if got := e.texts(query); !slices.Equal(got, want) {
		e.Errorf("%s: the table holds %q, want %q", rule, got, want)
	}
}

// upserting returns work that writes a row.
func (e *env) upserting(u natural.Upsert, outcome *natural.Outcome) func(ctx context.Context) error {
	return func(ctx context.Context) (err error) {
		*outcome, err = e.natural().UpsertRow(ctx, e.tx(ctx), u)
		return err
	}
}

// upsert writes a row in a transaction of its own and checks the outcome.
func (e *env) upsert(u natural.Upsert, want natural.Outcome, rule string) {
	e.Helper()
	var got natural.Outcome
	e.committed(e.upserting(u, &got))
	if got != want {
		e.Errorf("%s: the row was %s, want %s", rule, got, want)
	}
}

// These are the table of payments and a query for its content.
const (
	payments    = `CREATE TABLE payments (id VARCHAR(64) PRIMARY KEY, state TEXT, amount INTEGER)`
	allPayments = `SELECT id || ' ' || coalesce(state, 'null') || ' ' || amount FROM payments ORDER BY id`
)

// payment returns an upsert of a payment, which is final when it is paid or refunded.
func payment(id string, state any, amount int) natural.Upsert {
	return natural.Upsert{
		Table:       "payments",
		Key:         []natural.Column{{Name: "id", Value: id}},
		Values:      []natural.Column{{Name: "state", Value: state}, {Name: "amount", Value: amount}},
		Final:       "state",
		FinalValues: []any{"paid", "refunded"},
	}
}

// testNatural checks writes that are idempotent by nature (O6).
func testNatural(t *testing.T, h Harness) {
	h.test(t, "inserted, updated, kept", insertedUpdatedKept)
	h.test(t, "no row is final", func(e *env) {
		e.table(payments)
		for i, want := range []natural.Outcome{natural.OutcomeInserted, natural.OutcomeUpdated, natural.OutcomeUpdated} {
			u := payment("a", "paid", i)
			u.Final, u.FinalValues = "", nil
			e.upsert(u, want, "O6: without a final state")
		}
		e.wantTexts(allPayments, "O6: the last one counts", "a paid 2")
	})
	h.test(t, "a state that is null is not final", func(e *env) {
		e.table(payments)
		e.upsert(payment("a", nil, 1), natural.OutcomeInserted, "O6")
		e.upsert(payment("a", nil, 2), natural.OutcomeUpdated, "O6: a row whose state is null")
		e.upsert(payment("a", "paid", 3), natural.OutcomeUpdated, "O6: a row whose state is null")
		e.wantTexts(allPayments, "O6", "a paid 3")
	})
	h.test(t, "a key of two columns", twoColumns)
	h.test(t, "a final state that is not written", finalNotWritten)
	h.test(t, "nothing but a key", func(e *env) {
		e.table(payments)
		u := natural.Upsert{Table: "payments", Key: []natural.Column{{Name: "id", Value: "a"}}}
		e.upsert(u, natural.OutcomeInserted, "O6: a row of nothing but its key")
		e.upsert(u, natural.OutcomeUpdated, "O6: a row of nothing but its key, which is there and not final")
	})
	h.test(t, "odd names", oddNames)
	h.test(t, "rolled back", func(e *env) {
		e.table(payments)
		var outcome natural.Outcome
		e.rolledBack(e.upserting(payment("a", "paid", 1), &outcome))
		e.wantTexts(allPayments, "O6: after a rollback")
		e.upsert(payment("a", "new", 2), natural.OutcomeInserted, "O6: after a rollback")
		e.rolledBack(e.upserting(payment("a", "paid", 3), &outcome))
		e.wantTexts(allPayments, "O6: after a rollback", "a new 2")
	})
	h.test(t, "many at once", manyUpserts)
	h.test(t, "what makes no sense", senselessUpserts)
	h.test(t, "no transaction", func(e *env) {
		e.table(payments)
		if _, err := e.natural().UpsertRow(e.ctx, nil, payment("a", "new", 1)); err == nil {
			e.Error("O6: UpsertRow took nil for a transaction")
		}
		if err := e.natural().LockName(e.ctx, nil, "a"); err == nil {
			e.Error("O6: LockName took nil for a transaction")
		}
		e.wantTexts(allPayments, "O6: written without a transaction")
	})
	h.test(t, "locked", lockedNames)
	h.test(t, "locked, and counted by many", lockedAndCounted)
	if h.Features.ConcurrentTx && !h.Features.Certifies {
		h.test(t, "locked by one at a time", func(e *env) { lockWaits(e, nil) })
		h.test(t, "locked by one at a time, undone", func(e *env) { lockWaits(e, errUndone) })
	}
}

func insertedUpdatedKept(e *env) {
	e.table(payments)
	e.upsert(payment("a", "new", 1), natural.OutcomeInserted, "O6: there was no row")
	e.upsert(payment("b", "new", 9), natural.OutcomeInserted, "O6: there was no row of this key")
	e.upsert(payment("a", "new", 2), natural.OutcomeUpdated, "O6: the row is not final")
	e.upsert(payment("a", "new", 2), natural.OutcomeUpdated, "O6: the row is not final, and has these values already")
	e.upsert(payment("a", "paid", 3), natural.OutcomeUpdated, "O6: the row was not final before")
	e.wantTexts(allPayments, "O6: an update", "a paid 3", "b new 9")
	for _, state := range []string{"new", "paid", "refunded"} {
		e.upsert(payment("a", state, 4), natural.OutcomeKept, "O6: the row is final")
	}
	e.wantTexts(allPayments, "O6: a final row is as it was", "a paid 3", "b new 9")
	e.upsert(payment("b", "refunded", 5), natural.OutcomeUpdated, "O6: the row was not final before")
	e.upsert(payment("b", "new", 6), natural.OutcomeKept, "O6: the row has the second of the final states")
	e.upsert(payment("c", "paid", 7), natural.OutcomeInserted, "O6: inserted in a final state")
	e.wantTexts(allPayments, "O6: a final row is as it was", "a paid 3", "b refunded 5", "c paid 7")
}

// refusedUpsert checks that a row cannot be written. Its transaction is rolled back: not every database continues a
// transaction in which a statement failed.
func (e *env) refusedUpsert(u natural.Upsert, rule string) {
	e.Helper()
	err := e.inTx(func(ctx context.Context) error {
		var outcome natural.Outcome
		if err := e.upserting(u, &outcome)(ctx); err == nil {
			e.Errorf("%s: the row was %s, want an error", rule, outcome)
		}
		return errUndone
	})
	if !errors.Is(err, errUndone) {
		e.Errorf("%s: %v", rule, err)
	}
}

// senselessUpserts sends upserts that are impossible.
func senselessUpserts(e *env) {
	e.table(payments)
	for name, change := range map[string]func(*natural.Upsert){
		"no table":             func(u *natural.Upsert) { u.Table = "" },
		"no key":               func(u *natural.Upsert) { u.Key = nil },
		"a column twice":       func(u *natural.Upsert) { u.Values = append(u.Values, u.Key...) },
		"no final values":      func(u *natural.Upsert) { u.FinalValues = nil },
		"no such table":        func(u *natural.Upsert) { u.Table = "no_such_table_anywhere" },
		"no such column":       func(u *natural.Upsert) { u.Values[0].Name = "no_such_column" },
		"no unique constraint": func(u *natural.Upsert) { u.Key, u.Values = u.Values[1:], append(u.Values[:1:1], u.Key...) },
	} {
		u := payment("a", "new", 1)
		change(&u)
		e.refusedUpsert(u, "O6: "+name)
	}
	e.wantTexts(allPayments, "O6: what makes no sense")
}

// twoColumns uses a key of two columns; neither column alone is unique.
func twoColumns(e *env) {
	e.table(`CREATE TABLE order_lines (item INTEGER NOT NULL, shop VARCHAR(64) NOT NULL, closed INTEGER NOT NULL,
		note TEXT, UNIQUE (shop, item))`)
	line := func(shop string, item, closed int, note string) natural.Upsert {
		return natural.Upsert{
			Table:  "order_lines",
			Key:    []natural.Column{{Name: "shop", Value: shop}, {Name: "item", Value: item}},
			Values: []natural.Column{{Name: "closed", Value: closed}, {Name: "note", Value: note}},
			Final:  "closed", FinalValues: []any{1, 7},
		}
	}
	e.upsert(line("x", 1, 0, "first"), natural.OutcomeInserted, "O6: there was no row")
	e.upsert(line("x", 2, 0, "second"), natural.OutcomeInserted, "O6: the same shop, another item")
	e.upsert(line("y", 1, 7, "third"), natural.OutcomeInserted, "O6: another shop, the same item")
	e.upsert(line("x", 1, 1, "closed"), natural.OutcomeUpdated, "O6: both columns of the key are the same")
	e.upsert(line("x", 1, 0, "again"), natural.OutcomeKept, "O6: a final state that is a number")
	e.upsert(line("y", 1, 0, "again"), natural.OutcomeKept, "O6: another final state that is a number")
	e.upsert(line("x", 2, 0, "again"), natural.OutcomeUpdated, "O6: its neighbours are final, it is not")
	e.wantTexts(`SELECT shop || item || ' ' || closed || ' ' || note FROM order_lines ORDER BY shop, item`,
		"O6: a key of two columns",
		"x1 1 closed", "x2 0 again", "y1 7 third")
}

// finalNotWritten uses a final state that only other writers store.
func finalNotWritten(e *env) {
	e.table(payments, `INSERT INTO payments (id, state, amount) VALUES ('a', 'paid', 1), ('b', 'new', 1), ('c', NULL, 1)`)
	for id, want := range map[string]natural.Outcome{
		"a": natural.OutcomeKept, "b": natural.OutcomeUpdated, "c": natural.OutcomeUpdated, "d": natural.OutcomeInserted,
	} {
		u := payment(id, "", 2)
		u.Values = u.Values[1:]
		e.upsert(u, want, "O6: the final state is not among the values, row "+id)
	}
	e.wantTexts(allPayments, "O6: the final state is not among the values", "a paid 1", "b new 2", "c null 2", "d null 2")
}

// oddNames uses names that have another meaning in SQL if they are not quoted.
func oddNames(e *env) {
	names := []string{
		"select", "Größe in cm", `a"b`, "x?", "$1", ":name", "it's", "a;--", "CamelCase", "camelcase2",
		"a.b",
	}
	const table = `order "items"; -- ?`
	quote := func(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
	columns := make([]string, len(names))
	for i, name := range names {
		columns[i] = quote(name) + " TEXT"
	}
	e.table(fmt.Sprintf(`CREATE TABLE %s ("the key?" VARCHAR(64) PRIMARY KEY, %s)`, quote(table),
		strings.Join(columns, ", ")))
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
	e.upsert(row("one"), natural.OutcomeInserted, "O6: odd names")
	e.upsert(row(`final ' " ; --`), natural.OutcomeUpdated, "O6: odd names")
	e.upsert(row("three"), natural.OutcomeKept, "O6: odd names and an odd final state")
	for _, name := range names {
		e.wantTexts(fmt.Sprintf(`SELECT %s FROM %s`, quote(name), quote(table)), "O6: column "+name, `final ' " ; --`)
	}
}

// manyUpserts makes many callers write the same row at once, each in a final state: only the caller that inserted the
// row may continue.
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
		case outcome == natural.OutcomeInserted && winner < 0:
			winner = i
		case outcome != natural.OutcomeKept:
			e.Errorf("O6: a row that others write at the same moment was %s, want inserted once and kept by all others", outcome)
		}
	}
	e.wantTexts(allPayments, "O6: the row of the one that inserted it", fmt.Sprint("a paid ", winner))
}

// locking returns work that locks names.
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

// lockedAndCounted makes many callers read a number and write the next one, all under the same lock: no increment is
// lost.
func lockedAndCounted(e *env) {
	e.table(payments, `INSERT INTO payments (id, state, amount) VALUES ('a', 'new', 0)`)
	const n = 8
	errs := make([]error, n)
	together(n, func(i int) {
		errs[i] = e.inTx(func(ctx context.Context) error {
			if err := e.locking("a")(ctx); err != nil {
				return err
			}
			var amount int
			if err := e.tx(ctx).QueryRowContext(ctx, `SELECT amount FROM payments`).Scan(&amount); err != nil {
				return err
			}
			_, err := e.tx(ctx).ExecContext(ctx, fmt.Sprintf(`UPDATE payments SET amount = %d`, amount+1))
			return err
		})
	})
	e.must(errors.Join(errs...))
	e.wantTexts(allPayments, "O6: a number that is counted behind a lock", fmt.Sprint("a new ", n))
}

// lockWaits makes a second transaction request a name while the first one holds it, which then ends with verdict.
func lockWaits(e *env, verdict error) {
	end := e.begin(e.locking("a"))
	e.committed(e.locking("b", "A", "a ")) // others do not wait
	err := e.waits("O6: two transactions that lock the same name", e.locking("a"), func() error { return end(verdict) })
	e.must(err)
}
