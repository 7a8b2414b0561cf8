package main

import (
	"context"
	"errors"
	"fmt"
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
	{16, []string{mariadbTransactional, mariadbPlain, mariadbTextbook}, []storesFigure{
		{name: "mariadb-transactional-c16", way: mariadbTransactional, rival: mariadbPlain},
		{name: "mariadb-vs-textbook-c16", way: mariadbTransactional, rival: mariadbTextbook},
	}},
	{16, []string{mariadbBare, mariadbBorrowed, mariadbPlain, mariadbDefault}, []storesFigure{
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
	{16, []string{mariadbReserved, mariadbReplay, mariadbPlain}, []storesFigure{
		{name: "mariadb-reserved-c16", way: mariadbReserved, rival: mariadbPlain},
		{name: "mariadb-replay-c16", way: mariadbReplay, rival: mariadbPlain},
	}},
	{16, []string{dynamodbReserved, dynamodbPowertools}, []storesFigure{
		{name: "dynamodb-vs-powertools-way", way: dynamodbReserved, rival: dynamodbPowertools},
	}},
	{16, []string{dynamodbReplay, dynamodbPowerReplay}, []storesFigure{
		{name: "dynamodb-replay-vs-powertools-way", way: dynamodbReplay, rival: dynamodbPowerReplay},
	}},
}

// enginesContest is a number of ways that take turns, and what is read from their rates.
type enginesContest struct {
	callers int
	ways    []string
	figures []storesFigure
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
	t := &table{title: "Operations a second", head: []string{"way", "callers", "a second", "µs here", "µs in the server"}}
	for i := range enginesContests {
		c := &enginesContests[i]
		if !o.wants(c.names()...) {
			continue
		}
		rates, spent, err := e.hold(ctx, o, c)
		if err != nil {
			return err
		}
		for _, name := range c.ways {
			t.add(name, fmt.Sprint(c.callers), grouped(rates.median(name)),
				fmt.Sprintf("%.0f", spent.here.median(name)), fmt.Sprintf("%.0f", spent.server.median(name)))
		}
		for _, f := range c.figures {
			f.tell(r, rates)
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

// names are those of its figures.
func (c *enginesContest) names() (names []string) {
	for _, f := range c.figures {
		names = append(names, f.name)
	}
	return names
}

// hold opens the ways of a contest, and lets them take turns.
func (e *engines) hold(
	ctx context.Context, o *options, c *enginesContest,
) (rates series, spent *processorTime, err error) {
	e.callers = c.callers
	err = assemble(ctx, e.openers(c.ways), c.callers, o.time, func(arenas []*arena) (err error) {
		if spent, err = newProcessorTime(ctx, e.serverTime); err != nil {
			return err
		}
		rates, err = takeTurns(ctx, o, c.callers, c.ways, arenas, func(name string, done float64) error {
			return spent.turn(ctx, name, done)
		})
		return err
	})
	return rates, spent, err
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
