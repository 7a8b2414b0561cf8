package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/onceward/onceward/internal/servers"
)

// The ways on MariaDB and on a server that speaks DynamoDB's protocol.
const (
	mariadbPlain         = "MariaDB, unprotected: one insert"
	mariadbTransactional = "MariaDB, Onceward: transactional, one insert"
	mariadbBorrowed      = "MariaDB, Onceward: transactional, one insert, on a pool of the application's"
	mariadbReserved      = "MariaDB, Onceward: reserve, one insert, complete"
	mariadbReplay        = "MariaDB, Onceward: replay"
	mariadbTextbook      = "MariaDB, textbook: insert first, then update"
	mariadbDefault       = "MariaDB, textbook, the driver as it comes"
	mariadbBare          = "MariaDB, bare statements: transactional, one insert"
	dynamodbReserved     = "DynamoDB, Onceward: reserve and complete"
	dynamodbReplay       = "DynamoDB, Onceward: replay"
	dynamodbPowertools   = "DynamoDB, as Powertools does: put, update"
	dynamodbPowerReplay  = "DynamoDB, as Powertools does: replay"
)

// enginesWays are all of them.
var enginesWays = []enginesWay{
	{mariadbPlain, openMariaDBPlain},
	{mariadbTransactional, openMariaDBTransactional(openMariaDB)},
	{mariadbBorrowed, openMariaDBTransactional(openMariaDBBorrowed)},
	{mariadbReserved, openMariaDBReserved},
	{mariadbReplay, openMariaDBReplay},
	{mariadbTextbook, openMariaDBTextbook(interpolated)},
	{mariadbDefault, openMariaDBTextbook("")},
	{mariadbBare, openMariaDBBare},
	{dynamodbReserved, openDynamoDBReserved},
	{dynamodbReplay, openDynamoDBReplay},
	{dynamodbPowertools, openPowertools},
	{dynamodbPowerReplay, openPowertoolsReplay},
}

// enginesContests are all comparisons of speed of the suite.
var enginesContests = []enginesContest{
	{16, []string{mariadbTransactional, mariadbPlain, mariadbTextbook}, []comparison{
		{name: "mariadb-transactional-c16", way: mariadbTransactional, rival: mariadbPlain},
		{name: "mariadb-vs-textbook-c16", way: mariadbTransactional, rival: mariadbTextbook},
	}},
	{16, []string{mariadbBare, mariadbBorrowed, mariadbPlain, mariadbDefault}, []comparison{
		{
			name: "mariadb-transactional-c16-bare", way: mariadbBare, rival: mariadbPlain,
			like: "mariadb-transactional-c16",
		},
		{
			name: "mariadb-transactional-c16-borrowed", way: mariadbBorrowed, rival: mariadbPlain,
			like: "mariadb-transactional-c16",
		},
		{
			name: "mariadb-vs-textbook-c16-default", way: mariadbBorrowed, rival: mariadbDefault,
			like: "mariadb-vs-textbook-c16",
		},
	}},
	{16, []string{mariadbReserved, mariadbReplay, mariadbPlain}, []comparison{
		{name: "mariadb-reserved-c16", way: mariadbReserved, rival: mariadbPlain},
		{name: "mariadb-replay-c16", way: mariadbReplay, rival: mariadbPlain},
	}},
	{16, []string{dynamodbReserved, dynamodbPowertools}, []comparison{
		{name: "dynamodb-vs-powertools-way", way: dynamodbReserved, rival: dynamodbPowertools},
	}},
	{16, []string{dynamodbReplay, dynamodbPowerReplay}, []comparison{
		{name: "dynamodb-replay-vs-powertools-way", way: dynamodbReplay, rival: dynamodbPowerReplay},
	}},
}

// enginesContest is a number of ways that take turns, and what is read from their rates.
type enginesContest struct {
	callers int
	ways    []string
	figures []comparison
}

// enginesWay is a way to do something once, or to do it without protection.
type enginesWay struct {
	name string
	// open makes what the way needs in a place of its own.
	open func(ctx context.Context, e *engines) (*arena, error)
}

// engines are the servers that the ways share. Each is started when the first way needs it, and stays.
type engines struct {
	callers  int
	mariadb  *mariadbServer
	dynamodb *dynamodbServer
	// rows is how many are in each table of the business, and of the store, before anything is timed.
	rows int64
}

func (e *engines) close() (err error) {
	if e.mariadb != nil {
		err = e.mariadb.close()
	}
	return errors.Join(err, servers.CloseAll())
}

// measureEngines compares the stores on MariaDB and DynamoDB with what people would use instead.
func measureEngines(ctx context.Context, o *options, r *report) (err error) {
	if err := useDirectory(o.dir); err != nil {
		return err
	}
	e := &engines{rows: rowsBefore}
	defer func() { err = errors.Join(err, e.close()) }()
	r.note("clients are in this process, over TCP on loopback, with a connection for each caller; each server is private")
	t := &table{title: "Operations a second", head: contestHead()}
	for i := range enginesContests {
		c := &enginesContests[i]
		if !o.wants(namesOf(c.figures)...) {
			continue
		}
		res, err := e.hold(ctx, o, c)
		if err != nil {
			return err
		}
		for _, name := range c.ways {
			t.add(res.cells(name, c.callers)...)
		}
		for _, f := range c.figures {
			f.tell(r, res)
		}
	}
	if err := e.measureRequests(ctx, o, r); err != nil {
		return err
	}
	if len(t.rows) == 0 {
		return nil
	}
	r.keep(t)
	r.note("µs are of processor time for an operation: here that of this process, which is the client")
	if e.mariadb != nil {
		r.note("%s", e.mariadb.about)
	}
	return noteSync(o, r)
}

// hold opens the ways of a contest, and lets them take turns.
func (e *engines) hold(ctx context.Context, o *options, c *enginesContest) (res *result, err error) {
	e.callers = c.callers
	err = assemble(ctx, e.openers(c.ways), c.callers, o.time, func(arenas []*arena) (err error) {
		res, err = takeTurns(ctx, o, c.callers, c.ways, arenas, e.serverTime)
		return err
	})
	return res, err
}

// serverTime is what the servers have taken of the processors; one that is not used takes next to nothing.
func (e *engines) serverTime(context.Context) (sum time.Duration, err error) {
	var pids []int
	if e.mariadb != nil {
		pids = append(pids, e.mariadb.PID())
	}
	if e.dynamodb != nil {
		pids = append(pids, e.dynamodb.PID())
	}
	for _, pid := range pids {
		spent, err := processTime(pid)
		if err != nil {
			return 0, err
		}
		sum += spent
	}
	return sum, nil
}

// openers are the ways of these names, each with how it is opened.
func (e *engines) openers(names []string) (openers []opener) {
	for _, name := range names {
		i := slices.IndexFunc(enginesWays, func(w enginesWay) bool { return w.name == name })
		open := enginesWays[i].open
		openers = append(openers, opener{name, func(ctx context.Context) (*arena, error) { return open(ctx, e) }})
	}
	return openers
}
