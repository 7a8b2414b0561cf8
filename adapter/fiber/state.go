package oncewardfiber

import (
	"io"
	"net/http"
	"strings"
)

// found is what fiber holds of a request when the handler runs for the first time, and a handler may change.
type found struct {
	path, method string
	locals       []local
	room         [4]local // for most of them
}

type local struct{ key, value any }

// note keeps what the handler finds.
func (x *exchange) note() {
	c := x.fiber
	x.found.path, _, _ = strings.Cut(x.request.RequestURI, "?")
	if path := c.Path(); path != x.found.path { // a middleware has changed it
		x.found.path = strings.Clone(path)
	}
	x.found.method, x.found.locals = c.Method(), x.found.room[:0]
	c.RequestCtx().VisitUserValuesAll(func(key, value any) { x.found.locals = append(x.found.locals, local{key, value}) })
}

// restore lets a run find what the run before it has found, which the database undid.
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
