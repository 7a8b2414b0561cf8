package oncewardfiber

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
)

// writer is the response writer of the guard. Its answer is copied to fiber's response after the guard has finished,
// because the handler uses fiber's response until then.
type writer struct {
	header   http.Header
	before   *fasthttp.Response // fiber's response from before the guard
	response *fasthttp.Response
	headers  *headers
	written  bool
}

// open copies fiber's response from before the guard.
func (w *writer) open(c fiber.Ctx) {
	outer := c.Response()
	w.before, w.response = fasthttp.AcquireResponse(), fasthttp.AcquireResponse()
	w.headers = headersPool.Get().(*headers)
	w.header = w.headers.out
	outer.CopyTo(w.before)
	w.headers.fields(c.App(), outer, w.header)
}

// close releases the memory.
func (w *writer) close() {
	fasthttp.ReleaseResponse(w.before)
	fasthttp.ReleaseResponse(w.response)
	w.headers.free()
}

// Header implements [http.ResponseWriter].
func (w *writer) Header() http.Header { return w.header }

// WriteHeader implements [http.ResponseWriter]. It ignores informational answers, because fasthttp would treat one as
// the final answer.
func (w *writer) WriteHeader(status int) {
	if w.written || status < http.StatusOK {
		return
	}
	w.written = true
	w.before.CopyTo(w.response)
	w.response.ResetBody()
	to := &w.response.Header
	for name := range w.before.Header.All() {
		if _, there := w.header[string(name)]; !there && !ofServer(name) {
			to.DelBytes(name)
		}
	}
	for name, values := range w.header {
		if name == fiber.HeaderContentLength || strings.HasPrefix(name, http.TrailerPrefix) {
			continue
		}
		to.Del(name)
		for _, value := range values {
			to.Add(name, value)
		}
	}
	w.response.SetStatusCode(status)
}

// Write implements [http.ResponseWriter].
func (w *writer) Write(p []byte) (int, error) {
	if !w.written {
		w.WriteHeader(http.StatusOK)
	}
	w.response.AppendBody(p)
	return len(p), nil
}

// take passes the handler's answer from fiber's response to the guard. An unchanged response is not passed: the guard
// decides what a missing answer means.
func (x *exchange) take(ctx context.Context, to http.ResponseWriter) {
	response := x.fiber.Response()
	if response.IsBodyStream() {
		x.gather(ctx, response)
	}
	header := to.Header()
	clear(header)
	x.writer.headers.fields(x.fiber.App(), response, header)
	status, content := response.StatusCode(), response.Body()
	if status != fiber.StatusOK || len(content) > 0 {
		to.WriteHeader(status)
		_, _ = to.Write(content) // the guard reports an answer that is too large
	}
}

// gather reads a streamed answer completely. A stream that breaks off, or is not complete at the deadline, is an error
// of the handler. If the deadline has passed before the stream starts, the stream is read to its end, because a late
// answer counts too.
func (x *exchange) gather(ctx context.Context, response *fasthttp.Response) {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	content := gathered{ctx: ctx}
	err, announced := response.BodyWriteTo(&content), response.Header.ContentLength()
	if err == nil && len(content.content) < announced {
		err = fmt.Errorf("the handler announced an answer of %d bytes and sent %d", announced, len(content.content))
	}
	if err != nil {
		x.writer.before.CopyTo(response)
		x.answerFailure(x.fiber.Context(), err)
		return
	}
	response.SetBodyRaw(content.content)
}

// gathered collects a stream until a context ends: a stream that lasts as long as its client is connected would never
// end.
type gathered struct {
	ctx     context.Context
	content []byte
}

// Write implements [io.Writer].
func (g *gathered) Write(p []byte) (int, error) {
	if g.ctx.Err() != nil {
		return 0, context.Cause(g.ctx)
	}
	g.content = append(g.content, p...)
	return len(p), nil
}

// fields copies the header fields of a response, except the fields that fasthttp sets automatically.
func (h *headers) fields(app *fiber.App, from *fasthttp.Response, to http.Header) {
	n := 0
	for name, value := range from.Header.All() {
		byDefault := string(name) == fiber.HeaderContentType && string(value) == defaultContentType &&
			!app.Config().DisableDefaultContentType
		if !ofServer(name) && !byDefault {
			h.add(name)
			h.add(value)
			n++
		}
	}
	if n == 0 {
		return
	}
	next := h.texts()
	for range n {
		name, value := next(), next()
		h.set(to, name, value)
	}
	h.forget()
}

// defaultContentType is the content type that fasthttp sends if none was set.
const defaultContentType = "text/plain; charset=utf-8"

// ofServer reports whether the server controls a field, because the field depends on how the answer is framed.
func ofServer(name []byte) bool {
	switch string(name) {
	case fiber.HeaderContentLength, fiber.HeaderTransferEncoding, fiber.HeaderConnection, fiber.HeaderServer,
		fiber.HeaderDate, fiber.HeaderTrailer:
		return true
	default:
		return false
	}
}
