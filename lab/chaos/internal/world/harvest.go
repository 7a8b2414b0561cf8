package world

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/lab/chaos/internal/node"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// open opens the store past all faults.
func (w *World) open(ctx context.Context) (*storeurl.Database, error) {
	return node.Open(ctx, w.database.direct(), 0)
}

// Quiet reports whether nothing is left to be done: no operation open, no message on its way.
func (w *World) Quiet(ctx context.Context) (bool, error) {
	db, err := w.open(ctx)
	if err != nil {
		return false, err
	}
	defer db.Close()
	open, err := openRecords(ctx, db)
	if err != nil || len(open) > 0 {
		return false, err
	}
	calls, err := w.openCalls(ctx)
	if err != nil || calls > 0 || w.Plain() {
		return err == nil && calls == 0, err
	}
	messages, err := db.MessageStats(ctx)
	if err != nil || messages.Waiting > 0 {
		return false, err
	}
	return w.compared(ctx)
}

// OpenRecords are those of clients that are not settled.
func (w *World) OpenRecords(ctx context.Context) ([]store.Record, error) {
	db, err := w.open(ctx)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return openRecords(ctx, db)
}

func openRecords(ctx context.Context, db *storeurl.Database) (open []store.Record, err error) {
	for _, state := range []store.State{store.StateInProgress, store.StateUnknown} {
		for _, scope := range node.Tokens {
			page, err := db.List(ctx, store.Filter{Scope: scope, State: state})
			if err != nil {
				return nil, err
			}
			open = append(open, page...)
		}
	}
	return open, nil
}

// Waiting describes what is left to be done, for people: how many records are open and messages on their way, and what
// the database is at.
func (w *World) Waiting(ctx context.Context) string {
	db, err := w.open(ctx)
	if err != nil {
		return err.Error()
	}
	defer db.Close()
	records, err := db.Stats(ctx)
	var messages outbox.Stats
	if err == nil && !w.Plain() {
		messages, err = db.MessageStats(ctx)
	}
	if err != nil {
		return err.Error()
	}
	in := records.Records
	left := fmt.Sprintf("%d records in progress, %d unknown, %d messages",
		in[store.StateInProgress], in[store.StateUnknown], messages.Waiting)
	if calls, err := w.openCalls(ctx); err != nil || calls > 0 {
		left += fmt.Sprintf(", %d operations of callers (%v)", calls, err)
	}
	if busy := w.database.busy(ctx); busy != "" {
		left += "; " + busy
	}
	return left
}

// Unknown lists records whose outcome is unknown, past all faults. Close ends what it opened.
func (w *World) Unknown(ctx context.Context) (found []store.Record, err error) {
	db, err := w.looking(ctx)
	if err != nil {
		return nil, err
	}
	for _, scope := range node.Tokens {
		page, err := db.List(ctx, store.Filter{Scope: scope, State: store.StateUnknown, Limit: 200})
		if err != nil {
			return nil, err
		}
		found = append(found, page...)
	}
	return found, nil
}

// looking opens the store once for all who look at it while the run goes on.
func (w *World) looking(ctx context.Context) (*storeurl.Database, error) {
	w.looks.Lock()
	defer w.looks.Unlock()
	if w.view != nil {
		return w.view, nil
	}
	var err error
	w.view, err = w.open(ctx)
	return w.view, err
}

// Harvest reads what is there in the end: records, tables, messages and ledgers. Who asked for an effect is told by its
// reference, which each request has of its own.
func (w *World) Harvest(ctx context.Context, run *history.Run) error {
	owners := make(map[string]store.ID)
	for i := range run.Attempts {
		a := &run.Attempts[i]
		owners[a.Reference] = store.ID{Scope: a.Scope, Key: a.Key}
	}
	db, err := w.open(ctx)
	if err != nil {
		return err
	}
	err = errors.Join(harvestRecords(ctx, db, run), harvestAudits(ctx, db, run))
	if w.Plain() {
		err = errors.Join(err, w.harvestFiles(run, owners))
	} else {
		err = errors.Join(err, w.harvestTables(ctx, db, run, owners))
	}
	if d, ok := w.database.(*dynamodb); ok {
		err = errors.Join(err, d.harvestItems(ctx, run, owners))
	}
	if c, ok := w.database.(*cluster); ok {
		err = errors.Join(err, c.harvestSlots(ctx, run))
	}
	err = errors.Join(err, db.Close(),
		w.harvestLedger("acquirer", "charges", run, owners), w.harvestLedger("bank", "transfers", run, owners))
	w.clock.Lock()
	run.Steps = append(run.Steps, w.steps...)
	w.clock.Unlock()
	w.mu.Lock()
	run.FrontLosses = append(run.FrontLosses, w.frontLosses...)
	w.mu.Unlock()
	run.Faults = w.Struck()
	if w.database.front() != "" {
		run.Planned = append(run.Planned, frontUses...)
		countFront(run)
	}
	if c, ok := w.database.(*cluster); ok {
		err = errors.Join(err, c.harvestRefusals(ctx, run))
	}
	for _, fault := range w.Faults() {
		if !w.Brief {
			run.Planned = append(run.Planned, fault.Name)
		}
	}
	return err
}

// harvestTables reads the tables of the nodes.
func (w *World) harvestTables(ctx context.Context, db *storeurl.Database, run *history.Run,
	owners map[string]store.ID,
) error {
	left, err := readStock(ctx, db.Reads())
	for item, total := range w.stock {
		run.Stock = append(run.Stock, history.Stock{Item: item, Total: total, Left: left[item]})
	}
	return errors.Join(err, harvestMessages(ctx, db, run), w.harvestRows(ctx, db, run, owners),
		w.harvestArrivals(ctx, db, run, owners), w.harvestStays(ctx, db, run, owners))
}

// harvestFiles reads which steps of phased operations were done on a store without tables.
func (w *World) harvestFiles(run *history.Run, owners map[string]store.ID) error {
	files, err := os.ReadDir(w.owners())
	for _, file := range files {
		step, reference, found := strings.Cut(strings.TrimPrefix(file.Name(), node.StayPrefix), " ")
		if owner := owners[reference]; found {
			run.Rows = append(run.Rows, history.Row{
				Table: node.StayPrefix + step, Scope: owner.Scope, Key: owner.Key, Reference: reference,
			})
		}
	}
	return err
}

// harvestRecords reads the record of each operation that was asked for.
func harvestRecords(ctx context.Context, db *storeurl.Database, run *history.Run) error {
	read := make(map[store.ID]bool)
	for i := range run.Attempts {
		id := store.ID{Scope: run.Attempts[i].Scope, Key: run.Attempts[i].Key}
		if read[id] {
			continue
		}
		read[id] = true
		rec, err := db.Get(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		run.Records = append(run.Records, recordOf(&rec))
	}
	return nil
}

func recordOf(rec *store.Record) history.Record {
	r := history.Record{
		Scope: rec.Scope, Key: rec.Key, State: rec.State.String(), Attempt: rec.Attempt, Status: rec.Response.Status,
		Operation: rec.Operation, DeadLetter: rec.DeadLetter,
	}
	if rec.State == store.StateCompleted {
		r.Digest, r.Body = node.Digest(&rec.Response), string(rec.Response.Body)
	}
	return r
}

// harvestMessages reads the messages that were not delivered. What became of the others shows elsewhere.
func harvestMessages(ctx context.Context, db *storeurl.Database, run *history.Run) error {
	filter := outbox.Filter{
		States: []outbox.State{
			outbox.StateReady, outbox.StateLeased, outbox.StateBehind, outbox.StateHolding, outbox.StateDead,
		},
		Limit: 1000,
	}
	for {
		page, err := db.Messages(ctx, filter)
		if err != nil {
			return err
		}
		for i := range page {
			m := &page[i]
			run.Messages = append(run.Messages, history.Message{
				ID: m.ID, Scope: m.Origin.Scope, Key: m.Origin.Key, Topic: m.Topic, State: m.State.String(),
			})
		}
		if len(page) < filter.Limit {
			return nil
		}
		filter.After = page[len(page)-1].ID
	}
}

func (w *World) harvestRows(ctx context.Context, db *storeurl.Database, run *history.Run,
	owners map[string]store.ID,
) error {
	tables := map[string]string{
		"payment": "state, ''", "booking": "state, item", "refund": "'', ''", "entry": "'', ''",
	}
	for table, columns := range tables {
		query := fmt.Sprintf(`SELECT id, reference, %s FROM %s WHERE reference LIKE $1`, columns, table)
		rows, err := db.Reads().QueryContext(ctx, db.Bind(query), w.window+"%")
		if err != nil {
			return err
		}
		for rows.Next() {
			row := history.Row{Table: table}
			if err := rows.Scan(&row.ID, &row.Reference, &row.State, &row.Item); err != nil {
				return errors.Join(err, rows.Close())
			}
			if table == "booking" && row.State == "declined" {
				continue // its place was given back
			}
			row.Stray, row.Late = w.isStray(row.Reference), w.isLate(row.ID)
			owner := owners[row.Reference]
			row.Scope, row.Key = owner.Scope, owner.Key
			run.Rows = append(run.Rows, row)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
	}
	return nil
}

// harvestArrivals reads which parcels have arrived, and in which places.
func (w *World) harvestArrivals(ctx context.Context, db *storeurl.Database, run *history.Run,
	owners map[string]store.ID,
) error {
	rows, err := db.Reads().QueryContext(ctx,
		db.Bind(`SELECT street, reference, number, place FROM arrival WHERE reference LIKE $1`), w.window+"%")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		row := history.Row{Table: "arrival"}
		if err := rows.Scan(&row.Item, &row.Reference, &row.Number, &row.Place); err != nil {
			return err
		}
		owner := owners[row.Reference]
		row.Scope, row.Key = owner.Scope, owner.Key
		run.Rows = append(run.Rows, row)
	}
	return rows.Err()
}

// harvestStays reads which steps of phased operations were done.
func (w *World) harvestStays(ctx context.Context, db *storeurl.Database, run *history.Run,
	owners map[string]store.ID,
) error {
	rows, err := db.Reads().QueryContext(ctx, db.Bind(`SELECT reference, step FROM stay WHERE reference LIKE $1`),
		w.window+"%")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var row history.Row
		var step string
		if err := rows.Scan(&row.Reference, &step); err != nil {
			return err
		}
		owner := owners[row.Reference]
		row.Table, row.Scope, row.Key = "stay "+step, owner.Scope, owner.Key
		run.Rows = append(run.Rows, row)
	}
	return rows.Err()
}

// harvestAudits reads what the audit has about each operation that was settled from outside.
func harvestAudits(ctx context.Context, db *storeurl.Database, run *history.Run) error {
	touched := make(map[store.ID]bool)
	for i := range run.Writes {
		switch w := &run.Writes[i]; w.Call {
		case history.CallResolveCompleted, history.CallResolveNotExecuted, history.CallResolveStep, history.CallRequeue,
			history.CallBust:
			touched[store.ID{Scope: w.Scope, Key: w.Key}] = true
		}
	}
	for i := range run.Acts {
		touched[store.ID{Scope: run.Acts[i].Scope, Key: run.Acts[i].Key}] = true
	}
	for id := range touched {
		entries, err := db.Audit(ctx, id)
		if err != nil {
			return err
		}
		for _, e := range entries {
			run.Audits = append(run.Audits, history.Audit{
				Scope: e.Scope, Key: e.Key, Attempt: e.Attempt, Actor: e.Actor, Action: e.Action, Reason: e.Reason,
				Outcome: e.Outcome,
			})
		}
	}
	return nil
}

// readStock reads how many places of each item are left.
func readStock(ctx context.Context, db *sql.DB) (map[string]int64, error) {
	rows, err := db.QueryContext(ctx, `SELECT item, places FROM stock`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	left := make(map[string]int64)
	for rows.Next() {
		var item string
		var places int64
		if err := rows.Scan(&item, &places); err != nil {
			return nil, err
		}
		left[item] = places
	}
	return left, rows.Err()
}

// countStock notes how many places there are before a client in the window books one.
func (w *World) countStock(ctx context.Context) error {
	db, err := w.open(ctx)
	if err != nil {
		return err
	}
	w.stock, err = readStock(ctx, db.Reads())
	return errors.Join(err, db.Close())
}

func (w *World) harvestLedger(name, book string, run *history.Run, owners map[string]store.ID) error {
	entries, err := provider.ReadEntries(w.Ledger(name), w.read[name])
	if err != nil {
		return err
	}
	for _, entry := range entries {
		effect := history.Effect{Book: book, Declined: entry.Type == provider.EntryDeclined}
		if entry.Charge != nil {
			effect.ID, effect.Reference, effect.Amount = entry.Charge.ID, entry.Charge.Reference, entry.Charge.Amount
		} else {
			effect.Book = "refunds"
			effect.ID, effect.Reference, effect.Amount = entry.Refund.ID, entry.Refund.Reference, entry.Refund.Amount
		}
		effect.Stray = w.isStray(effect.Reference)
		owner := owners[effect.Reference]
		effect.Scope, effect.Key = owner.Scope, owner.Key
		run.Effects = append(run.Effects, effect)
	}
	return nil
}
