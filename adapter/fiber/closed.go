package oncewardfiber

import (
	"crypto/tls"
	"errors"
	"os"
	"time"

	"github.com/valyala/fasthttp"
)

// endWait is how long the end of a connection may take to be read from one whose socket cannot be asked.
const endWait = 20 * time.Millisecond

// closed reports whether the client of a request has ended its side of the connection, where that was read before.
func closed(request *fasthttp.RequestCtx) bool {
	conn := request.Conn()
	until := time.Now().Add(endWait)
	if _, secure := conn.(*tls.Conn); secure {
		until = time.Unix(1, 0) // TLS remembers the end; its connection may be open for longer
	} else if ended, known := peek(conn); known {
		return ended
	}
	defer func() { _ = conn.SetReadDeadline(time.Time{}) }() // the server sets its own for the next request
	if conn.SetReadDeadline(until) != nil {
		return true
	}
	var next [1]byte
	n, err := conn.Read(next[:])
	if n > 0 {
		request.SetConnectionClose() // the next request has begun, and cannot be read any more
		return false
	}
	return !errors.Is(err, os.ErrDeadlineExceeded)
}
