package main

import (
	"fmt"
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/onceward/onceward"
	"github.com/valyala/fasthttp"
)

// payFiber is pay for fiber.
func payFiber(c fiber.Ctx) error {
	if len(c.Body()) != len(order) {
		return fiber.ErrBadRequest
	}
	c.Set(fiber.HeaderContentType, contentType)
	c.Set(fiber.HeaderLocation, location)
	return c.Status(http.StatusCreated).SendString(answer)
}

// openFiberBare is fiber without protection.
func openFiberBare() (func(string), func(bool) error, error) {
	app := fiber.New()
	app.Post("/payments", payFiber)
	return callFiber(app)
}

// openFiberIdempotent is fiber's own middleware on its own memory storage. It makes no fingerprint: a key that comes back
// with another body is replayed.
func openFiberIdempotent() (func(string), func(bool) error, error) {
	app := fiber.New()
	app.Post("/payments", idempotency.New(idempotency.Config{KeyHeader: onceward.DefaultKeyHeader}), payFiber)
	return callFiber(app)
}

// callFiber calls the handler of fasthttp directly, with one request context that is used again.
func callFiber(app *fiber.App) (func(string), func(bool) error, error) {
	handler := app.Handler()
	var ctx fasthttp.RequestCtx
	ctx.Request.Header.SetMethod(http.MethodPost)
	ctx.Request.Header.SetContentType(contentType)
	ctx.Request.SetRequestURI("/payments")
	call := func(key string) {
		ctx.Request.Header.Set(onceward.DefaultKeyHeader, key)
		ctx.Request.SetBodyString(order)
		ctx.Response.Reset()
		ctx.ResetUserValues()
		handler(&ctx)
	}
	check := func(bool) error {
		if ctx.Response.StatusCode() != http.StatusCreated || string(ctx.Response.Body()) != answer ||
			string(ctx.Response.Header.Peek(fiber.HeaderLocation)) != location {
			return fmt.Errorf("the answer was %s", &ctx.Response)
		}
		return nil
	}
	return call, check, nil
}
