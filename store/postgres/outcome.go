package postgres

import (
	"encoding/binary"
	"fmt"
)

// values reads the columns of a result in the binary format, which is what pgx asks for.
type values struct {
	raw [][]byte
	err error
}

func (v *values) fixed(column, size int) []byte {
	b := v.raw[column]
	if b != nil && len(b) != size && v.err == nil {
		v.err = fmt.Errorf("column %d has %d bytes instead of %d", column, len(b), size)
	}
	if len(b) != size {
		return make([]byte, size)
	}
	return b
}

func (v *values) int16(column int) int16 { return int16(binary.BigEndian.Uint16(v.fixed(column, 2))) }

func (v *values) int32(column int) int32 { return int32(binary.BigEndian.Uint32(v.fixed(column, 4))) }

func (v *values) int64(column int) int64 { return int64(binary.BigEndian.Uint64(v.fixed(column, 8))) }
func (v *values) bool(column int) bool   { return v.fixed(column, 1)[0] != 0 }

// bytes copies: what a connection reads into is used again.
func (v *values) bytes(column int) []byte { return append([]byte(nil), v.raw[column]...) }

// readOutcome reads one row of the SQL function.
func readOutcome(raw [][]byte, items []*item) error {
	v := values{raw: raw}
	n := int(v.int32(0))
	if v.bool(10) {
		return ErrStandby
	}
	if n < 1 || n > len(items) {
		return fmt.Errorf("the server answered item %d of %d", n, len(items))
	}
	t := items[n-1]
	t.outcome, t.now = v.int16(1), v.int64(2)
	t.found = row{id: t.id}
	switch t.outcome {
	case outcomeAbsent:
	case outcomeCreated, outcomeRecreated:
		t.found.attempt = v.int64(3)
	case outcomeRetried:
		t.found.attempt, t.found.retention, t.found.more = v.int64(3), v.int32(5), v.bytes(9)
	case outcomeWritten:
		t.found.due = v.int64(4)
	case outcomeRead:
		t.found = row{
			id: t.id, attempt: v.int64(3), due: v.int64(4), retention: v.int32(5), answer: v.bytes(6), queue: v.int16(7),
			request: v.bytes(8), more: v.bytes(9),
		}
	default:
		return fmt.Errorf("the server answered with outcome %d", t.outcome)
	}
	return v.err
}
