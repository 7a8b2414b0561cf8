package postgres

import "encoding/binary"

// The types of the elements of arrays, by the numbers that PostgreSQL knows them by.
const (
	oidBytea = 17
	oidInt8  = 20
	oidInt2  = 21
	oidInt4  = 23
	oidUUID  = 2950
)

// arrayOf encodes one value of each item as an array in the binary format.
func arrayOf(oid uint32, items []*item, add func(dst []byte, t *item) []byte) []byte {
	dst := make([]byte, 0, 20+24*len(items))
	for _, header := range [...]uint32{1, 0, oid, uint32(len(items)), 1} { // one dimension, no nulls, from one on
		dst = binary.BigEndian.AppendUint32(dst, header)
	}
	for _, t := range items {
		start := len(dst)
		dst = add(append(dst, 0, 0, 0, 0), t)
		binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	}
	return dst
}

func ids(items []*item) []byte {
	return arrayOf(oidUUID, items, func(dst []byte, t *item) []byte { return append(dst, t.id[:]...) })
}

func attempts(items []*item) []byte {
	return arrayOf(oidInt8, items, func(dst []byte, t *item) []byte { return binary.BigEndian.AppendUint64(dst, uint64(t.attempt)) })
}

func spans(items []*item) []byte {
	return arrayOf(oidInt8, items, func(dst []byte, t *item) []byte { return binary.BigEndian.AppendUint64(dst, uint64(t.span)) })
}

func retentions(items []*item) []byte {
	return arrayOf(oidInt4, items, func(dst []byte, t *item) []byte { return binary.BigEndian.AppendUint32(dst, uint32(t.retention)) })
}

func queues(items []*item) []byte {
	return arrayOf(oidInt2, items, func(dst []byte, t *item) []byte { return binary.BigEndian.AppendUint16(dst, uint16(t.queue)) })
}

// The modes of a reservation: to look only, to take over what is there, or to make a record too.
const (
	modeLook   = 0
	modeTake   = 1
	modeCreate = 2
)

func modes(items []*item) []byte {
	return arrayOf(oidInt2, items, func(dst []byte, t *item) []byte {
		switch {
		case t.look:
			return append(dst, 0, modeLook)
		case t.create:
			return append(dst, 0, modeCreate)
		default:
			return append(dst, 0, modeTake)
		}
	})
}

func answers(items []*item) []byte {
	return arrayOf(oidBytea, items, func(dst []byte, t *item) []byte { return append(dst, t.answer...) })
}

func requests(items []*item) []byte {
	return arrayOf(oidBytea, items, func(dst []byte, t *item) []byte { return append(dst, t.request...) })
}

func mores(items []*item) []byte {
	return arrayOf(oidBytea, items, func(dst []byte, t *item) []byte { return append(dst, t.more...) })
}

// arguments are those of the SQL function for items of one kind.
func arguments(k kind, items []*item) [][]byte {
	switch k {
	case kindReserve:
		return [][]byte{
			ids(items), modes(items), spans(items), retentions(items), queues(items), answers(items), requests(items), mores(items),
		}
	case kindExtend:
		return [][]byte{ids(items), attempts(items), spans(items)}
	default:
		return [][]byte{ids(items), attempts(items), retentions(items), answers(items), mores(items)}
	}
}
