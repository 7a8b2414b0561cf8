package tiered

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"github.com/onceward/onceward/store"
)

// entry is a value of the front: a completed record, and the times at which it was read.
type entry struct {
	record store.Record
	// readAt is a time just before the record was read, by the clock of the node that read it.
	readAt time.Time
	// now is the time at which it was read, by the clock of the durable store.
	now time.Time
}

// entryFormat is the first byte of an encoded entry. A value with another format is ignored.
const entryFormat = 1

// checksums detects values that were damaged in the front or in transit: an answer of the front is sent to clients as
// it is.
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
	// headSize is the size of the fields before the ID.
	headSize = 1 + 8 + 8 + 4
	// sumSize is the size of the checksum.
	sumSize = 4
)

var errNoEntry = errors.New("tiered: what the front holds is no entry for this ID")

// decodeEntry decodes an entry. The ID is compared byte for byte, to detect a front that mixes up names, for example
// because it shortens them.
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
