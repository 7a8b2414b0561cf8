package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// httpContender is a handler with the minimum around it that a server needs, so that only the code under test allocates.
type httpContender struct {
	name string
	// open returns the handler in a fresh state: a call sends one request with the key.
	open func() (call func(key string), check func(replayed bool) error, err error)
	// replays says that every key has been used before it is measured.
	replays bool
}

// The contenders on the memory store.
const (
	bareHTTP    = "net/http: bare handler"
	firstHTTP   = "Onceward: first execution"
	replayHTTP  = "Onceward: replay"
	bareFiber   = "fiber: bare handler"
	firstFiber  = "fiber idempotency: first execution"
	replayFiber = "fiber idempotency: replay"
)

var httpContenders = []httpContender{
	{name: bareHTTP, open: openBare},
	{name: firstHTTP, open: openGuarded},
	{name: replayHTTP, open: openGuarded, replays: true},
	{name: bareFiber, open: openFiberBare},
	{name: firstFiber, open: openFiberIdempotent},
	{name: replayFiber, open: openFiberIdempotent, replays: true},
}

// requestsPerTurn is enough to amortise what a store allocates once in a while, such as a larger map.
const requestsPerTurn = 20_000

// measureMemory takes the cost of protection over the memory store, beside that of fiber's middleware.
func measureMemory(ctx context.Context, o *options, r *report) error {
	const name = "memory-requests"
	if !o.wants(name, "memory-first", "memory-replay") {
		return nil
	}
	contenders := httpContenders
	if !o.wants(name) {
		contenders = contenders[:slices.IndexFunc(contenders, func(c httpContender) bool { return c.name == bareFiber })]
	}
	nanos, allocs := make(series), make(series)
	for range o.rounds {
		for _, c := range contenders {
			if err := ctx.Err(); err != nil {
				return err
			}
			spent, allocated, err := c.turn()
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			nanos.add(c.name, spent)
			allocs.add(c.name, allocated)
		}
	}
	t := &table{
		title: "Requests over the memory store: one caller, 1 KiB of JSON in, 200 bytes out",
		head:  []string{"handler", "requests/s", "ns/request", "allocs/request"},
	}
	for _, c := range contenders {
		ns := nanos.median(c.name)
		t.add(c.name, grouped(1e9/ns), grouped(ns), fmt.Sprintf("%.1f", allocs.median(c.name)))
	}
	r.keep(t)
	r.judge("memory-first", allocs.median(firstHTTP)-allocs.median(bareHTTP))
	r.judge("memory-replay", allocs.median(replayHTTP)-allocs.median(bareHTTP))
	return nil
}

// turn measures nanoseconds and allocations of a request. The keys are made before, and so is what a replay needs.
func (c *httpContender) turn() (nanos, allocs float64, err error) {
	call, check, err := c.open()
	if err != nil {
		return 0, 0, err
	}
	keys := newKeys(requestsPerTurn)
	warmUp := newKeys(100)
	if c.replays {
		warmUp = keys
	}
	for _, key := range warmUp {
		call(key)
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	started := time.Now()
	for _, key := range keys {
		call(key)
	}
	elapsed := time.Since(started)
	runtime.ReadMemStats(&after)
	n := float64(len(keys))
	return float64(elapsed.Nanoseconds()) / n, float64(after.Mallocs-before.Mallocs) / n, check(c.replays)
}
