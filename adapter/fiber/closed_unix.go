//go:build unix

package oncewardfiber

import (
	"net"
	"syscall"
)

// peek reports whether the client has closed its side of the connection. Known is false if the connection gives no
// access to its socket.
func peek(conn net.Conn) (ended, known bool) {
	asked, ok := conn.(syscall.Conn)
	if !ok {
		return false, false
	}
	raw, err := asked.SyscallConn()
	if err != nil {
		return true, true
	}
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ended = n == 0 && err == nil || err != nil && err != syscall.EAGAIN && err != syscall.EINTR
		return true
	})
	return ended || err != nil, true
}
