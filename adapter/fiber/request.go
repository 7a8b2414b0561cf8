package oncewardfiber

import (
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"sync"

	"github.com/gofiber/fiber/v3"
)

// headers is reusable memory for the header fields of a request and its answer. The maps and slices are reused. The
// strings are not, because a record may keep them.
type headers struct {
	in, out http.Header
	values  []string
	scratch []byte
	ends    []int
}

var headersPool = sync.Pool{New: func() any { return &headers{in: make(http.Header), out: make(http.Header)} }}

// maxScratch limits the memory that unused headers keep.
const maxScratch = 16 << 10

// free returns the memory to the pool.
func (h *headers) free() {
	if cap(h.scratch) > maxScratch {
		return
	}
	clear(h.in)
	clear(h.out)
	clear(h.values)
	h.values, h.scratch, h.ends = h.values[:0], h.scratch[:0], h.ends[:0]
	headersPool.Put(h)
}

// add appends a part of a text.
func (h *headers) add(part []byte) {
	h.scratch = append(h.scratch, part...)
	h.ends = append(h.ends, len(h.scratch))
}

// texts converts the parts to strings in one allocation. next returns them in order.
func (h *headers) texts() (next func() string) {
	all, start, i := string(h.scratch), 0, 0
	ends := h.ends
	return func() string {
		text := all[start:ends[i]]
		start, i = ends[i], i+1
		return text
	}
}

// forget removes the parts.
func (h *headers) forget() { h.scratch, h.ends = h.scratch[:0], h.ends[:0] }

// set adds a value to a header, after existing values of the same name.
func (h *headers) set(to http.Header, name, value string) {
	name = textproto.CanonicalMIMEHeaderKey(name)
	if old, there := to[name]; there {
		to[name] = append(old, value)
		return
	}
	h.values = append(h.values, value)
	n := len(h.values)
	to[name] = h.values[n-1 : n : n]
}

// request builds the guard's request as a copy of fasthttp's request.
func (h *headers) request(x *exchange) error {
	c := x.fiber
	from := c.Request()
	h.add(from.Header.RequestURI())
	h.add(from.Header.Host())
	h.addAddress(c.RequestCtx().RemoteAddr())
	fields := 0
	for name, value := range from.Header.All() {
		h.add(name)
		h.add(value)
		fields++
	}
	next := h.texts()
	target := next()
	if err := parseTarget(target, &x.url); err != nil {
		return err
	}
	x.request = *(&http.Request{
		Method: c.Method(), URL: &x.url, RequestURI: target, Host: next(), RemoteAddr: next(), Header: h.in,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, TLS: c.RequestCtx().TLSConnectionState(),
		Pattern: x.route.Path,
	}).WithContext(x)
	for range fields {
		if name, value := next(), next(); name != fiber.HeaderHost { // net/http removes it too
			h.set(h.in, name, value)
		}
	}
	h.forget()
	return x.body.open(&x.request, c)
}

// parseTarget parses the target of a request. Most targets need no unescaping, and are parsed without an allocation.
func parseTarget(target string, to *url.URL) error {
	path, query, found := strings.Cut(target, "?")
	if strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") && plain(path) && plain(query) {
		*to = url.URL{Path: path, RawQuery: query, ForceQuery: found && query == ""}
		return nil
	}
	u, err := url.ParseRequestURI(target)
	if err == nil {
		*to = *u
	}
	return err
}

// plain reports whether a part of a target needs no unescaping.
func plain(part string) bool {
	for i := range len(part) {
		switch c := part[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("/-._~=&", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// addAddress appends the address of the client, without an allocation for a TCP address.
func (h *headers) addAddress(address net.Addr) {
	if tcp, ok := address.(*net.TCPAddr); ok {
		h.scratch = tcp.AddrPort().AppendTo(h.scratch)
	} else if address != nil {
		h.scratch = append(h.scratch, address.String()...)
	}
	h.ends = append(h.ends, len(h.scratch))
}
