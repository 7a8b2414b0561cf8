package oncewardfiber

import (
	"io"
	"net/http"
	"strings"
)

// found is the state of fiber's context before the first run of the handler, which the handler may change.
type found struct {
	path, method string
	locals       []local
	room         [4]local // memory for most requests
}

type local struct{ key, value any }

// note saves the state that the handler may change.
func (x *exchange) note() {
	c := x.fiber
	x.found.path, _, _ = strings.Cut(x.request.RequestURI, "?")
	if path := c.Path(); path != x.found.path { // a middleware has changed the path
		x.found.path = strings.Clone(path)
	}
	x.found.method, x.found.locals = c.Method(), x.found.room[:0]
	c.RequestCtx().VisitUserValuesAll(func(key, value any) { x.found.locals = append(x.found.locals, local{key, value}) })
}

// restore resets fiber's context to the state before the first run, because the database undid that run.
func (x *exchange) restore(handed *http.Request) error {
	c := x.fiber
	x.writer.before.CopyTo(c.Response())
	request := c.Request()
	for _, name := range request.Header.PeekKeys() {
		request.Header.Del(string(name))
	}
	for name, values := range x.request.Header {
		for _, value := range values {
			request.Header.Add(name, value)
		}
	}
	request.SetRequestURI(x.request.RequestURI)
	request.Header.SetHost(x.request.Host)
	c.Method(x.found.method)
	c.Path(x.found.path)
	c.RequestCtx().ResetUserValues()
	for _, l := range x.found.locals {
		c.RequestCtx().SetUserValue(l.key, l.value)
	}
	content, err := io.ReadAll(handed.Body)
	request.SetBodyRaw(content)
	return err
}
