//go:build unix

package oncewardfiber

import (
	"net"
	"syscall"
)

// closed reports whether the client has closed its side of a connection. A connection that cannot be asked counts as
// open.
func closed(conn net.Conn) bool {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	asked, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := asked.SyscallConn()
	if err != nil {
		return true
	}
	ended := false
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ended = n == 0 && err == nil || err != nil && err != syscall.EAGAIN && err != syscall.EINTR
		return true
	})
	return ended || err != nil
}
