package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"
)

// The ways on PostgreSQL.
const (
	pgPlain           = "unprotected: one insert"
	pgTransactional   = "Onceward: transactional, one insert"
	pgReserved        = "Onceward: reserve, one insert, complete"
	pgReplay          = "Onceward: replay"
	pgSerializable    = "check-then-insert at SERIALIZABLE, one insert"
	pgPlain3          = "unprotected: three statements"
	pgTransactional3  = "Onceward: transactional, three statements"
	pgBatched         = "Onceward: reserve and complete"
	pgSingly          = "Onceward without batches: reserve and complete"
	pgHTTPPlain       = "HTTP, unprotected: one insert"
	pgHTTPTransaction = "HTTP, Onceward: transactional, one insert"
)

// The order puts those side by side that are compared.
var pgContenders = []pgContender{
	{pgPlain, oneRow.openPlain},
	{pgTransactional, oneRow.openTransactional},
	{pgReserved, oneRow.openReservedOperation},
	{pgReplay, openPGReplay},
	{pgSerializable, openArticle},
	{pgPlain3, threeStatements.openPlain},
	{pgTransactional3, threeStatements.openTransactional},
	{pgBatched, openReserveComplete(openStore)},
	{pgSingly, openReserveComplete(openSingly)},
	{outboxAdd, threeStatements.openWithMessage},
	{outboxAddIn, threeStatements.openAnswerWithMessage},
	{pgHTTPPlain, openHTTPPlain},
	{pgHTTPTransaction, openHTTPTransactional},
	{pgBare, oneRow.openBareTransactional},
	{pgBare3, threeStatements.openBareTransactional},
	{pgBareReserved, oneRow.openBareReserved},
	{pgHTTPBare, openHTTPBare},
	{outboxBare, threeStatements.openOutboxBare},
	{outboxNothing, threeStatements.openOutboxNothing},
	{unobservedFirst, openObserved(false, observedFirsts)},
	{observedFirst, openObserved(true, observedFirsts)},
	{unobservedReplay, openObserved(false, observedReplays)},
	{observedReplay, openObserved(true, observedReplays)},
}

// pgFigures are all comparisons of speed, by the number of callers.
var pgFigures = []pgFigure{
	{"postgres-transactional-c16", 16, pgTransactional, pgPlain},
	{"postgres-transactional3-c16", 16, pgTransactional3, pgPlain3},
	{"postgres-reserved-c16", 16, pgReserved, pgPlain},
	{"postgres-replay-c16", 16, pgReplay, pgPlain},
	{"postgres-vs-serializable-c16", 16, pgTransactional, pgSerializable},
	{"postgres-http-c16", 16, pgHTTPTransaction, pgHTTPPlain},
	{"postgres-transactional-c64", 64, pgTransactional, pgPlain},
	{"postgres-batch-c64", 64, pgBatched, pgSingly},
	{"postgres-http-c64", 64, pgHTTPTransaction, pgHTTPPlain},
	{"postgres-batch-c256", 256, pgBatched, pgSingly},
}

// pgCallers are the columns of the table.
var pgCallers = []int{16, 64, 256}

// measurePostgres compares the speed of protection on a server, then what it costs on the disk.
func measurePostgres(ctx context.Context, o *options, r *report) (err error) {
	s, err := openServer(ctx, o, "shared_buffers=1GB")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r.note("%s", s.about)
	r.note("clients are in this process, over TCP on loopback, with a pool of as many connections as callers, at most %d",
		maxConnections)
	for _, measure := range []part{s.measureSpeed, s.measureBare, s.measureSizes} {
		if err := measure(ctx, o, r); err != nil {
			return err
		}
	}
	return nil
}

// measureSpeed runs the wanted comparisons, and shows all in one table.
func (s *pgServer) measureSpeed(ctx context.Context, o *options, r *report) error {
	t := &table{title: "Operations a second on " + s.about, head: []string{"way"}}
	cells := make(map[string][]string)
	for _, callers := range pgCallers {
		rates, err := s.compare(ctx, o, r, figuresAt(callers))
		if err != nil {
			return err
		}
		if len(rates) > 0 {
			addColumn(t, cells, callers, rates)
		}
	}
	for _, c := range pgContenders {
		if strings.Join(cells[c.name], "") != "" {
			t.add(append([]string{c.name}, cells[c.name]...)...)
		}
	}
	if len(t.rows) == 0 {
		return nil
	}
	r.keep(t)
	for _, c := range pgContenders {
		if remark := s.remarks[c.name]; remark != "" {
			r.note("%s: %s in the last round", c.name, remark)
		}
	}
	return noteSync(o, r)
}

// figuresAt are those with that many callers.
func figuresAt(callers int) (figures []pgFigure) {
	for _, f := range pgFigures {
		if f.callers == callers {
			figures = append(figures, f)
		}
	}
	return figures
}

func compareRates(r *report, f pgFigure, rates series) {
	ratio := rates.ratio(f.way, f.rival)
	if _, promised := goals[f.name]; !promised {
		r.note("%s: %.2f, without a goal", f.name, ratio)
		return
	}
	r.judge(f.name, ratio)
}

// addColumn adds what each way reached with that many callers; a way that was not measured gets an empty cell.
func addColumn(t *table, cells map[string][]string, callers int, rates series) {
	t.head = append(t.head, callersHead(callers))
	for _, c := range pgContenders {
		cell := ""
		if rates[c.name] != nil {
			cell = grouped(rates.median(c.name))
		}
		cells[c.name] = append(cells[c.name], cell)
	}
}

// noteSync says what a durable write costs where temporary files are, which is where a private server keeps its data.
func noteSync(o *options, r *report) error {
	dir := o.dir
	if dir == "" {
		dir = os.TempDir()
	}
	sync, err := syncTime(dir)
	if err != nil {
		return err
	}
	r.note("a write of 4 KiB with its fsync takes %s in %s", sync.Round(time.Microsecond), dir)
	return nil
}
