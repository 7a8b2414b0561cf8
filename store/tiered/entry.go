package tiered

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"github.com/onceward/onceward/store"
)

// entry is what the front holds: a completed record, and when it was read.
type entry struct {
	record store.Record
	// readAt is the clock of the node that read the record, before it did.
	readAt time.Time
	// now is the clock of the durable store when it was read.
	now time.Time
}

// entryFormat is the first byte of an encoded entry. One of another format is none.
const entryFormat = 1

// checksums finds what was damaged on its way: the answer of a front is sent as it is.
var checksums = crc32.MakeTable(crc32.Castagnoli)

// appendBinary encodes the entry: the format, both times, the ID with its length, the record, and a checksum of all.
func (e entry) appendBinary(dst []byte) []byte {
	id := e.record.ID.AppendBinary(nil)
	dst = append(dst, entryFormat)
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.readAt.UnixMicro()))
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.now.UnixMicro()))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(id)))
	dst = append(dst, id...)
	dst = e.record.AppendBinary(dst)
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst, checksums))
}

const (
	// headSize is the size of what stands before the ID.
	headSize = 1 + 8 + 8 + 4
	// sumSize is the size of the checksum.
	sumSize = 4
)

var errNoEntry = errors.New("tiered: what the front holds is no entry for this ID")

// decodeEntry reads an entry. The ID is compared byte for byte: a front that mixes up names, as one that shortens them
// might, is found out.
func decodeEntry(id store.ID, b []byte) (e entry, err error) {
	end := len(b) - sumSize
	if end < headSize || b[0] != entryFormat || binary.BigEndian.Uint32(b[end:]) != crc32.Checksum(b[:end], checksums) {
		return e, errNoEntry
	}
	e.readAt = time.UnixMicro(int64(binary.BigEndian.Uint64(b[1:])))
	e.now = time.UnixMicro(int64(binary.BigEndian.Uint64(b[9:]))).UTC()
	size, rest := binary.BigEndian.Uint32(b[17:]), b[headSize:end]
	var buf [320]byte
	if uint64(size) > uint64(len(rest)) || !bytes.Equal(rest[:size], id.AppendBinary(buf[:0])) {
		return e, errNoEntry
	}
	e.record, err = store.DecodeRecord(id, rest[size:])
	return e, err
}
