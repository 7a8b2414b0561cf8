package main

import (
	"context"
	"errors"
	"slices"

	"github.com/onceward/onceward/internal/servers"
)

// The ways on Redis, and on PostgreSQL with something around its store.
const (
	redisReserved  = "Onceward: reserve and complete on Redis"
	redisReplay    = "Onceward: replay from Redis"
	redisReplay1   = "Onceward: replay from Redis, first of each key in the process"
	redisHTTP      = "HTTP, net/http: Onceward on Redis, reserved"
	tieredReplay   = "Onceward: replay from the Redis in front of PostgreSQL"
	tieredFirst    = "Onceward: transactional, one insert, behind a front"
	sealedFirst    = "Onceward: transactional, one insert, sealed"
	sealedFirst4K  = "Onceward: transactional, one insert, answer of 4 KiB, sealed"
	plainFirst4K   = "Onceward: transactional, one insert, answer of 4 KiB"
	doLimited      = "Onceward: Do on Redis, shared limits"
	doUnlimited    = "Onceward: Do on Redis, no limits"
	frontGet       = "raw: GET of what the front holds"
	redisTwoSets   = "raw: SET, SET"
	redisOneTrip   = "raw: both SETs in one round trip"
	redisGet       = "raw: GET"
	recipePipeline = "recipe, rueidis: SET NX EX, SET EX"
	recipePool     = "recipe, pool of go-redis: SET NX EX, SET EX"
	httpNothing    = "HTTP, net/http: the handler alone"
	fiberNothing   = "HTTP, fiber: the handler alone"
	fiberRedis     = "HTTP, fiber: its idempotency middleware, its Redis storage"
)

// storesWays are all of them.
var storesWays = []storesWay{
	{redisReserved, openRedisReserved},
	{redisReplay, openRedisReplay},
	{redisReplay1, openRedisFirstReplay},
	{redisHTTP, openRedisHTTP},
	{tieredReplay, openTieredReplay},
	{tieredFirst, openFirst(fronted, shortBody)},
	{sealedFirst, openFirst(sealing, shortBody)},
	{sealedFirst4K, openFirst(sealing, listAnswer)},
	{pgTransactional, openFirst(unwrapped, shortBody)},
	{plainFirst4K, openFirst(unwrapped, listAnswer)},
	{doLimited, openDo(true)},
	{doUnlimited, openDo(false)},
	{frontGet, openFrontGet},
	{redisTwoSets, openTwoSets},
	{redisOneTrip, openOneTrip},
	{redisGet, openGet},
	{recipePipeline, openRecipePipeline},
	{recipePool, openRecipePool},
	{httpNothing, openHTTPNothing},
	{fiberNothing, openFiberNothing},
	{fiberRedis, openFiberRedis},
}

// The settings of a Redis that say what it survives.
var (
	always   = persistence{"appendfsync always", nil}
	everysec = persistence{"appendfsync everysec", []string{"appendfsync everysec"}}
	inMemory = persistence{"appendonly no", []string{"appendonly no"}}
)

// persistence is what a Redis keeps when it is killed. The name is for the report.
type persistence struct {
	name     string
	settings []string
}

// storesContests are all comparisons of speed of the suite.
var storesContests = []storesContest{
	{always, 64, []string{redisReserved, redisTwoSets}, []comparison{
		{name: "redis-reserve-complete-c64", way: redisReserved, rival: redisTwoSets},
	}},
	{everysec, 64, []string{redisReserved, redisTwoSets}, []comparison{
		{
			name: "redis-reserve-complete-c64-everysec", way: redisReserved, rival: redisTwoSets,
			like: "redis-reserve-complete-c64",
		},
	}},
	{inMemory, 64, []string{redisReserved, redisTwoSets}, []comparison{
		{
			name: "redis-reserve-complete-c64-memory", way: redisReserved, rival: redisTwoSets,
			like: "redis-reserve-complete-c64",
		},
	}},
	{always, 64, []string{redisReplay, redisGet, redisReplay1}, []comparison{
		{name: "redis-replay-c64", way: redisReplay, rival: redisGet},
		{name: "redis-replay-c64-first", way: redisReplay1, rival: redisGet, like: "redis-replay-c64"},
	}},
	{always, 64, []string{tieredReplay, frontGet}, []comparison{
		{name: "tiered-replay-c64", way: tieredReplay, rival: frontGet, times: true},
	}},
	{always, 16, []string{tieredFirst, pgTransactional}, []comparison{
		{name: "tiered-first-c16", way: tieredFirst, rival: pgTransactional, fine: true},
	}},
	{always, 16, []string{sealedFirst, pgTransactional}, []comparison{
		{name: "sealed-first-c16", way: sealedFirst, rival: pgTransactional, fine: true},
	}},
	{always, 16, []string{sealedFirst4K, plainFirst4K}, []comparison{
		{name: "sealed-first-c16-4k", way: sealedFirst4K, rival: plainFirst4K},
	}},
	{always, 64, []string{doLimited, doUnlimited}, []comparison{
		{name: "limit-shared-c64", way: doLimited, rival: doUnlimited, fine: true},
	}},
	{always, 64, []string{redisReserved, recipePipeline, recipePool, redisOneTrip}, []comparison{
		{name: "redis-vs-recipe-c64", way: redisReserved, rival: recipePipeline},
		{name: "redis-vs-recipe-pool-c64", way: redisReserved, rival: recipePool},
		{name: "redis-vs-one-trip-c64", way: redisReserved, rival: redisOneTrip},
	}},
	{always, 64, []string{redisHTTP, fiberRedis, httpNothing, fiberNothing}, []comparison{
		{name: "redis-http-vs-fiber-c64", way: redisHTTP, rival: fiberRedis},
		{name: "redis-http-c64", way: redisHTTP, rival: httpNothing},
		{name: "fiber-http-c64", way: fiberRedis, rival: fiberNothing},
	}},
}

// storesContest is a number of ways that take turns on one Redis, and what is read from their rates.
type storesContest struct {
	redis   persistence
	callers int
	ways    []string
	figures []comparison
}

// storesWay is a way to do something once, or to do it without protection.
type storesWay struct {
	name string
	// open makes what the way needs in a place of its own.
	open func(ctx context.Context, s *stage) (*arena, error)
}

// measureStores compares what stores on Redis cost, and what goes around any store.
func measureStores(ctx context.Context, o *options, r *report) (err error) {
	if err := useDirectory(o.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.CloseAll()) }()
	// The PostgreSQL is started when the first way needs it, and stays.
	var postgres *pgServer
	defer func() {
		if postgres != nil {
			err = errors.Join(postgres.close(), err)
		}
	}()
	openPostgres := func(ctx context.Context) (_ *pgServer, err error) {
		if postgres == nil {
			postgres, err = openServer(ctx, o, "shared_buffers=1GB")
		}
		return postgres, err
	}
	r.note("clients are in this process, over TCP on loopback; each Redis is private and begins without data")
	t := &table{
		title: "Operations a second",
		head:  append(contestHead(), "Redis"),
	}
	for i := range storesContests {
		c := &storesContests[i]
		if !o.wants(namesOf(c.figures)...) {
			continue
		}
		res, err := c.hold(ctx, o, openPostgres)
		if err != nil {
			return err
		}
		for _, name := range c.ways {
			t.add(append(res.cells(name, c.callers), c.redis.name)...)
		}
		for _, f := range c.figures {
			f.tell(r, res)
		}
	}
	if len(t.rows) == 0 {
		return nil
	}
	r.keep(t)
	r.note("µs are of processor time for an operation: here that of this process, which is the client, " +
		"in the server that of Redis")
	return noteSync(o, r)
}

// hold opens the ways of a contest, and lets them take turns.
func (c *storesContest) hold(
	ctx context.Context, o *options, postgres func(context.Context) (*pgServer, error),
) (res *result, err error) {
	s, err := openStage(ctx, c, postgres)
	if err != nil {
		return nil, err
	}
	turns := *o
	if slices.ContainsFunc(c.figures, func(f comparison) bool { return f.fine }) {
		turns.rounds *= 3
	}
	err = assemble(ctx, s.openers(c.ways), c.callers, o.time, func(arenas []*arena) (err error) {
		res, err = takeTurns(ctx, &turns, c.callers, c.ways, arenas, s.redisTime)
		return err
	})
	return res, errors.Join(err, s.close())
}

// openers are the ways of these names, each with how it is opened.
func (s *stage) openers(names []string) (openers []opener) {
	for _, name := range names {
		openers = append(openers, s.opener(wayOf(name)))
	}
	return openers
}

// opener is a way with how it is opened.
func (s *stage) opener(w *storesWay) opener {
	return opener{w.name, func(ctx context.Context) (*arena, error) { return w.open(ctx, s) }}
}

// wayOf is the way of that name.
func wayOf(name string) *storesWay {
	i := slices.IndexFunc(storesWays, func(w storesWay) bool { return w.name == name })
	return &storesWays[i]
}
