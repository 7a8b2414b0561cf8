package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// The ways on PostgreSQL.
const (
	pgPlain           = "unprotected: one insert"
	pgTransactional   = "Onceward: transactional, one insert"
	pgReserved        = "Onceward: reserve, one insert, complete"
	pgReplay          = "Onceward: replay"
	pgSerializable    = "check-then-insert at SERIALIZABLE, one insert"
	pgAtOnce          = "check-then-insert at SERIALIZABLE, again at once"
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
	{pgSerializable, openArticle(articlePause)},
	{pgAtOnce, openArticle(0)},
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

// pgContests are all comparisons of speed. Those with the bare statements say how much there is to gain.
var pgContests = []pgContest{
	{16, durably, []string{pgPlain, pgTransactional, pgBare}, []comparison{
		{name: "postgres-transactional-c16", way: pgTransactional, rival: pgPlain},
		{name: "postgres-transactional-of-bare-c16", way: pgTransactional, rival: pgBare},
		{name: "postgres-transactional-c16-bare", way: pgBare, rival: pgPlain, like: "postgres-transactional-c16"},
	}},
	{16, durably, []string{pgPlain3, pgTransactional3, pgBare3}, []comparison{
		{name: "postgres-transactional3-c16", way: pgTransactional3, rival: pgPlain3},
		{name: "postgres-transactional3-c16-bare", way: pgBare3, rival: pgPlain3, like: "postgres-transactional3-c16"},
	}},
	{16, durably, []string{pgPlain, pgReserved, pgBareReserved}, []comparison{
		{name: "postgres-reserved-c16", way: pgReserved, rival: pgPlain},
		{name: "postgres-reserved-c16-bare", way: pgBareReserved, rival: pgPlain, like: "postgres-reserved-c16"},
	}},
	{16, durably, []string{pgPlain, pgReplay}, []comparison{
		{name: "postgres-replay-c16", way: pgReplay, rival: pgPlain},
	}},
	{16, durably, []string{pgTransactional, pgSerializable, pgAtOnce}, []comparison{
		{name: "postgres-vs-serializable-c16", way: pgTransactional, rival: pgSerializable},
		{
			name: "postgres-vs-serializable-c16-at-once", way: pgTransactional, rival: pgAtOnce,
			like: "postgres-vs-serializable-c16",
		},
	}},
	{16, durably, []string{pgHTTPPlain, pgHTTPTransaction, pgHTTPBare}, []comparison{
		{name: "postgres-http-c16", way: pgHTTPTransaction, rival: pgHTTPPlain},
		{name: "postgres-http-c16-bare", way: pgHTTPBare, rival: pgHTTPPlain, like: "postgres-http-c16"},
	}},
	{64, durably, []string{pgPlain, pgTransactional}, []comparison{
		{name: "postgres-transactional-c64", way: pgTransactional, rival: pgPlain},
	}},
	{64, durably, []string{pgBatched, pgSingly}, []comparison{
		{name: "postgres-batch-c64", way: pgBatched, rival: pgSingly},
	}},
	{64, durably, []string{pgHTTPPlain, pgHTTPTransaction, pgHTTPBare}, []comparison{
		{name: "postgres-http-c64", way: pgHTTPTransaction, rival: pgHTTPPlain},
		{name: "postgres-http-c64-bare", way: pgHTTPBare, rival: pgHTTPPlain, like: "postgres-http-c64"},
	}},
	{256, durably, []string{pgBatched, pgSingly}, []comparison{
		{name: "postgres-batch-c256", way: pgBatched, rival: pgSingly},
	}},
}

// networkContests are those where waiting costs more than work.
var networkContests = []pgContest{
	{4, distantly, []string{pgPlain, pgTransactional, pgReserved}, []comparison{
		{name: "postgres-network-c4", way: pgTransactional, rival: pgPlain},
		{name: "postgres-network-c4-p50", way: pgTransactional, rival: pgPlain, half: true},
		{name: "postgres-network-reserved-c4", way: pgReserved, rival: pgPlain},
		{name: "postgres-network-reserved-c4-p50", way: pgReserved, rival: pgPlain, half: true},
	}},
	{16, distantly, []string{pgPlain, pgTransactional}, []comparison{
		{name: "postgres-network-c16", way: pgTransactional, rival: pgPlain},
		{name: "postgres-network-c16-p50", way: pgTransactional, rival: pgPlain, half: true},
	}},
}

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
	for _, measure := range []part{s.measureSpeed, s.measureNetwork, s.measureLog, s.measureSizes} {
		if err := measure(ctx, o, r); err != nil {
			return err
		}
	}
	return nil
}

// measureSpeed compares ways where the server is next door and both share the processors.
func (s *pgServer) measureSpeed(ctx context.Context, o *options, r *report) error {
	if err := s.compete(ctx, o, r, "Operations a second on "+s.about, pgContests); err != nil {
		return err
	}
	for _, c := range pgContenders {
		if remark := s.remarks[c.name]; remark != "" {
			r.note("%s: %s", c.name, remark)
		}
	}
	return noteSync(o, r)
}

// measureNetwork compares ways where the server is far off and its disk slow.
func (s *pgServer) measureNetwork(ctx context.Context, o *options, r *report) error {
	title := fmt.Sprintf("Operations a second over a network of %s there and back, with %s µs more for a commit",
		distantly.delay, distantly.settings["commit_delay"])
	return s.compete(ctx, o, r, title, networkContests)
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
