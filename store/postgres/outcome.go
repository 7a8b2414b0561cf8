package postgres

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
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

// read copies the columns of a record, from the given one on.
func (r *row) read(v *values, from int) {
	r.attempt, r.due, r.retention, r.answer = v.int64(from), v.int64(from+1), v.int32(from+2), v.bytes(from+3)
	r.queue, r.request, r.more = v.int16(from+4), v.bytes(from+5), v.bytes(from+6)
}

// postgresEpoch is the year 2000, from which the server counts.
const postgresEpoch = 946684800000000

// fromPostgresTime reads a timestamp of the binary format.
func fromPostgresTime(us int64) time.Time { return fromMicros(us + postgresEpoch) }

// readOutcome reads one row that a statement returned for items of one kind, which are in the order of their names. An
// item without a row was refused; a reservation always has one.
func readOutcome(raw [][]byte, items []*item) error {
	v := values{raw: raw}
	if items[0].kind != kindReserve {
		return readWritten(&v, items)
	}
	n := v.int64(0)
	if v.err != nil || n < 1 || n > int64(len(items)) {
		return fmt.Errorf("the server answered item %d of %d", n, len(items))
	}
	t := items[n-1]
	t.found = row{id: t.id}
	if v.bool(10) {
		return ErrStandby
	}
	t.outcome, t.now = v.int16(1), v.int64(2)
	switch t.outcome {
	case outcomeRead:
		t.found.read(&v, 3)
	case outcomeRetried:
		t.found.retention, t.found.more = v.int32(5), v.bytes(9)
	}
	if t.outcome != outcomeAbsent && t.outcome != outcomeAgain {
		t.found.attempt = v.int64(3)
	}
	return v.err
}

// readWritten reads the row of a heartbeat or an answer. No two of a batch have the same name.
func readWritten(v *values, items []*item) error {
	written := item{id: [16]byte(v.fixed(0, 16))}
	i, found := slices.BinarySearchFunc(items, &written, compareItems)
	if v.err != nil || !found {
		return fmt.Errorf("the server answered for a record that nobody asked for: %x", written.id)
	}
	items[i].outcome, items[i].found = outcomeWritten, row{id: written.id, due: v.int64(1)}
	return v.err
}
