//go:build !unix

package oncewardfiber

import "net"

// closed reports whether the client has closed its side of a connection, which cannot be asked on this system.
func closed(net.Conn) bool { return false }
