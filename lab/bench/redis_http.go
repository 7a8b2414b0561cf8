package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	fiberredis "github.com/gofiber/storage/redis/v3"
	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward"
)

// noBusiness is for a handler of which only the protection is measured.
func noBusiness(context.Context, func(context.Context, pgx.Tx) error) error { return nil }

// openHTTPNothing is the handler under net/http, without protection.
func openHTTPNothing(_ context.Context, s *stage) (*arena, error) {
	return serve(payment(noBusiness), s.callers, nil, nil)
}

// fiberPayment is the same handler for fiber.
func fiberPayment(c fiber.Ctx) error {
	var sent sentPayment
	if err := json.Unmarshal(c.Body(), &sent); err != nil {
		return c.Status(http.StatusBadRequest).SendString(err.Error())
	}
	c.Set("Content-Type", contentType)
	c.Set("Location", location)
	return c.Status(http.StatusCreated).SendString(answer)
}

// openFiberNothing is the handler under fiber, without protection.
func openFiberNothing(_ context.Context, s *stage) (*arena, error) {
	return serveFiber(s.callers, nil, nil)
}

// openFiberRedis is the handler behind fiber's middleware. Its storage is shared by all nodes, its lock is not: it is
// in the process, so two nodes that get a key at the same time both execute it. Nothing is stored before the handler
// has run, so a crash leaves no trace; what was sent is not compared, and a key belongs to everyone.
func openFiberRedis(_ context.Context, s *stage) (*arena, error) {
	p, err := s.place()
	if err != nil {
		return nil, err
	}
	storage := fiberredis.New(fiberredis.Config{URL: p.url, PoolSize: s.callers})
	guard := idempotency.New(idempotency.Config{Storage: storage, KeyHeader: onceward.DefaultKeyHeader})
	a, err := serveFiber(s.callers, p.expect, p.close(storage.Close), guard)
	return a, err
}

// serveFiber is serve for fiber.
func serveFiber(
	callers int, check func(context.Context, int64) error, closeStore func() error, guards ...any,
) (*arena, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	app := fiber.New()
	if len(guards) > 0 {
		app.Use(guards...)
	}
	app.Post("/payments", fiberPayment)
	stopped := make(chan error, 1)
	go func() { stopped <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	return callOver(listener.Addr(), callers, check, app.Shutdown, stopped, closeStore), nil
}
