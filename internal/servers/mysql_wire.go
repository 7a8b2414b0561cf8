package servers

import (
	"bufio"
	"encoding/binary"
	"io"
)

// These are the bytes of MySQL's protocol that the proxy uses. A reply begins
// with a byte of the last group, or with the number of columns of its rows.
const (
	mysqlGreeting = 10

	mysqlQuit     = 0x01
	mysqlQuery    = 0x03
	mysqlPrepare  = 0x16
	mysqlExecute  = 0x17
	mysqlLongData = 0x18
	mysqlClose    = 0x19

	mysqlOK    = 0x00
	mysqlEOF   = 0xfe
	mysqlError = 0xff
)

const (
	// mysqlWhole is the length of a packet that continues in the next packet.
	mysqlWhole = 1<<24 - 1
	// mysqlMore is set in the status of a result that is followed by another.
	mysqlMore = 0x0008
)

// mysqlPacket is one packet with its length and number, as read, including its continuation packets.
type mysqlPacket []byte

func (p mysqlPacket) body() []byte { return p[4:] }

// kind returns the first byte of the body. An empty body counts as OK.
func (p mysqlPacket) kind() byte {
	if len(p.body()) == 0 {
		return mysqlOK
	}
	return p.body()[0]
}

// isEOF reports whether a packet ends columns or rows. A row can begin with the same byte, but is then longer.
func (p mysqlPacket) isEOF() bool { return p.kind() == mysqlEOF && len(p.body()) < 9 }

// readMySQLPacket reads one packet, with its continuation packets.
func readMySQLPacket(r *bufio.Reader) (packet mysqlPacket, err error) {
	for {
		head, err := r.Peek(4)
		if err != nil {
			return nil, err
		}
		size := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
		begins := len(packet)
		packet = append(packet, make([]byte, 4+size)...)
		if _, err := io.ReadFull(r, packet[begins:]); err != nil {
			return nil, err
		}
		if size < mysqlWhole {
			return packet, nil
		}
	}
}

// These are the capabilities that are removed from a server's greeting, so that no client asks for them. The proxy
// could not find the end of a reply with them.
const (
	mysqlDeprecateEOF = 1 << 24
	mysqlCompress     = 1 << 5
	mysqlSSL          = 1 << 11
)

// plainGreeting removes the capabilities that the proxy does not support from a server's
// greeting: other ends of rows, compression, encryption, and MariaDB's extensions.
func plainGreeting(greeting mysqlPacket) {
	body := greeting.body()
	version := 1
	for version < len(body) && body[version] != 0 {
		version++
	}
	// After the version follow its end, the connection ID, 8 bytes of the challenge, and a zero.
	low := version + 1 + 4 + 8 + 1
	high := low + 2 + 1 + 2
	added := high + 2 + 1 + 6 // MariaDB's
	if greeting.kind() != mysqlGreeting || len(body) < added+4 {
		return
	}
	lower, upper := binary.LittleEndian.Uint16(body[low:]), binary.LittleEndian.Uint16(body[high:])
	all := (uint32(upper)<<16 | uint32(lower)) &^ (mysqlDeprecateEOF | mysqlCompress | mysqlSSL)
	binary.LittleEndian.PutUint16(body[low:], uint16(all))
	binary.LittleEndian.PutUint16(body[high:], uint16(all>>16))
	copy(body[added:added+4], make([]byte, 4))
}

// mysqlReply tracks the packets of the reply to one command.
type mysqlReply struct {
	command byte
	// ends is the number of further packets that end a list, when it is known.
	ends int
	rows bool
}

// add processes the next packet, and reports whether it is the last packet.
func (r *mysqlReply) add(p mysqlPacket) (done bool) {
	switch {
	case p.kind() == mysqlError:
		return true
	case r.ends > 0 && !p.isEOF():
		return false
	case r.ends > 0:
		if r.ends--; r.ends == 0 && r.rows && mysqlGoesOn(p.body()[min(3, len(p.body())):]) {
			r.rows = false
			return false
		}
		return r.ends == 0
	case r.command == mysqlPrepare && p.kind() == mysqlOK && len(p.body()) >= 9:
		r.ends = prepareEnds(p.body())
		return r.ends == 0
	case p.kind() == mysqlOK:
		return !mysqlGoesOn(statusOf(p.body()))
	case p.isEOF():
		return true
	default:
		r.ends, r.rows = 2, true // after the columns, and after the rows
		return false
	}
}

// prepareEnds returns the number of lists after the reply to a prepared statement: its parameters and its columns.
func prepareEnds(body []byte) (ends int) {
	for _, at := range []int{5, 7} {
		if binary.LittleEndian.Uint16(body[at:]) > 0 {
			ends++
		}
	}
	return ends
}

// statusOf returns the status in a reply without rows. It follows two numbers.
func statusOf(body []byte) []byte {
	rest := body[1:]
	for range 2 {
		if len(rest) == 0 {
			return nil
		}
		size := 1
		switch rest[0] {
		case 0xfc:
			size = 3
		case 0xfd:
			size = 4
		case 0xfe:
			size = 9
		}
		rest = rest[min(size, len(rest)):]
	}
	return rest
}

// mysqlGoesOn reports whether a status announces another result.
func mysqlGoesOn(status []byte) bool {
	return len(status) >= 2 && binary.LittleEndian.Uint16(status)&mysqlMore != 0
}
