package oncewardfiber

import (
	"crypto/tls"
	"errors"
	"os"
	"time"

	"github.com/valyala/fasthttp"
)

// endWait is how long to wait for the end of a connection whose socket cannot be queried.
const endWait = 20 * time.Millisecond

// closed reports whether the client of a request has closed its side of the connection, after the end of the body was
// read.
func closed(request *fasthttp.RequestCtx) bool {
	conn := request.Conn()
	until := time.Now().Add(endWait)
	if _, secure := conn.(*tls.Conn); secure {
		until = time.Unix(1, 0) // TLS remembers the end; the TCP connection may stay open longer
	} else if ended, known := peek(conn); known {
		return ended
	}
	defer func() { _ = conn.SetReadDeadline(time.Time{}) }() // the server sets its own deadline for the next request
	if conn.SetReadDeadline(until) != nil {
		return true
	}
	var next [1]byte
	n, err := conn.Read(next[:])
	if n > 0 {
		request.SetConnectionClose() // a byte of the next request is lost, so it cannot be read any more
		return false
	}
	return !errors.Is(err, os.ErrDeadlineExceeded)
}
