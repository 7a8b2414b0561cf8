package rpc

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// field is one field of a message.
type field struct {
	descriptor protoreflect.FieldDescriptor
	value      protoreflect.Value
}

// record is a run of unknown fields with one number. There may be many: the caller decides.
type record struct {
	number   protoreflect.FieldNumber
	from, to int
}

// appendMessage appends a message in its one canonical form: the wire format, with fields in the order of their numbers
// and maps in the order of their keys. The deterministic mode of the protobuf library only guarantees one form within
// one build, and puts unknown fields after all others: two nodes in the middle of a deploy would then take one request
// for two. Here a field that only the newer schema contains has the same place as in the newer program.
//
// Unknown fields are taken as they were sent. So a request with an unknown field that a client may encode in more than
// one way, above all a map, can still look different.
func appendMessage(b []byte, m protoreflect.Message, without protoreflect.FieldNumber) []byte {
	w := writers.Get().(*writer)
	defer writers.Put(w)
	w.b, w.lengths, w.more = b, w.lengths[:0], 0
	w.message(m, without)
	b, w.b = w.end(), nil
	return b
}

// writer writes a message in time that grows with its size, however deep it is nested: the length of a part is known
// only after the part, and all lengths are inserted at the end.
type writer struct {
	b       []byte   // without the lengths
	lengths []length // in the order of their positions
	more    int      // the size of the known lengths in bytes
}

var writers = sync.Pool{New: func() any { return new(writer) }}

// length is the length of the part that starts at a position.
type length struct{ at, size int }

// part writes content with its length in front.
func (w *writer) part(content func()) {
	n, start := len(w.lengths), len(w.b)+w.more
	w.lengths = append(w.lengths, length{at: len(w.b)})
	content()
	size := len(w.b) + w.more - start
	w.lengths[n].size = size
	w.more += protowire.SizeVarint(uint64(size))
}

// end inserts the lengths, from the last to the first.
func (w *writer) end() []byte {
	from := len(w.b)
	b := slices.Grow(w.b, w.more)[:from+w.more]
	to := len(b)
	for _, l := range slices.Backward(w.lengths) {
		to -= copy(b[to-(from-l.at):], b[l.at:from])
		from = l.at
		to -= protowire.SizeVarint(uint64(l.size))
		protowire.AppendVarint(b[to:to], uint64(l.size))
	}
	return b
}

func (w *writer) message(m protoreflect.Message, without protoreflect.FieldNumber) {
	c := collectors.Get().(*collector)
	defer c.free()
	c.without = without
	m.Range(c.visit)
	unknown := m.GetUnknown()
	c.addUnknown(unknown)
	slices.SortFunc(c.fields, func(a, b field) int { return cmp.Compare(a.descriptor.Number(), b.descriptor.Number()) })
	slices.SortFunc(c.records, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.from, b.from))
	})
	records := c.records
	for i := range c.fields {
		for ; len(records) > 0 && records[0].number < c.fields[i].descriptor.Number(); records = records[1:] {
			w.b = append(w.b, unknown[records[0].from:records[0].to]...)
		}
		w.field(&c.fields[i])
	}
	for _, r := range records {
		w.b = append(w.b, unknown[r.from:r.to]...)
	}
}

// collector gathers the fields of a message: known fields, and records of unknown ones. It is reused, so that a call
// with few fields allocates nothing for it.
type collector struct {
	fields  []field
	records []record
	without protoreflect.FieldNumber
	visit   func(protoreflect.FieldDescriptor, protoreflect.Value) bool
}

var collectors = sync.Pool{New: func() any {
	c := new(collector)
	c.visit = c.add
	return c
}}

func (c *collector) add(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	if d.Number() != c.without {
		c.fields = append(c.fields, field{d, v})
	}
	return true
}

func (c *collector) addUnknown(all []byte) {
	for from := 0; from < len(all); {
		number, _, n := protowire.ConsumeField(all[from:])
		if n < 0 { // no decoder accepts such a field
			number, n = math.MaxInt32, len(all)-from
		}
		if last := len(c.records) - 1; last >= 0 && c.records[last].number == number {
			c.records[last].to += n
		} else {
			c.records = append(c.records, record{number, from, from + n})
		}
		from += n
	}
}

func (c *collector) free() {
	clear(c.fields)
	c.fields, c.records = c.fields[:0], c.records[:0]
	collectors.Put(c)
}

func (w *writer) field(f *field) {
	switch d := f.descriptor; {
	case d.IsMap():
		w.entries(d, f.value.Map())
	case d.IsList() && d.IsPacked():
		w.b = protowire.AppendTag(w.b, d.Number(), protowire.BytesType)
		w.part(func() {
			for i := range f.value.List().Len() {
				w.value(d, f.value.List().Get(i))
			}
		})
	case d.IsList():
		for i := range f.value.List().Len() {
			w.single(d, f.value.List().Get(i))
		}
	default:
		w.single(d, f.value)
	}
}

// entries writes a map in the order of its keys' bytes.
func (w *writer) entries(d protoreflect.FieldDescriptor, m protoreflect.Map) {
	type entry struct {
		key     protoreflect.MapKey
		encoded []byte
	}
	all := make([]entry, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		all = append(all, entry{k, appendScalar(nil, d.MapKey(), k.Value())})
		return true
	})
	slices.SortFunc(all, func(a, b entry) int { return bytes.Compare(a.encoded, b.encoded) })
	for i := range all {
		w.b = protowire.AppendTag(w.b, d.Number(), protowire.BytesType)
		w.part(func() {
			w.single(d.MapKey(), all[i].key.Value())
			w.single(d.MapValue(), m.Get(all[i].key))
		})
	}
}

// single writes one value with its tag.
func (w *writer) single(d protoreflect.FieldDescriptor, v protoreflect.Value) {
	w.b = protowire.AppendTag(w.b, d.Number(), wireType(d.Kind()))
	w.value(d, v)
	if d.Kind() == protoreflect.GroupKind {
		w.b = protowire.AppendTag(w.b, d.Number(), protowire.EndGroupType)
	}
}

func (w *writer) value(d protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch d.Kind() {
	case protoreflect.GroupKind:
		w.message(v.Message(), 0)
	case protoreflect.MessageKind:
		w.part(func() { w.message(v.Message(), 0) })
	default:
		w.b = appendScalar(w.b, d, v)
	}
}

func wireType(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	default:
		return protowire.VarintType
	}
}

func appendScalar(b []byte, d protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch d.Kind() {
	case protoreflect.BoolKind:
		return protowire.AppendVarint(b, protowire.EncodeBool(v.Bool()))
	case protoreflect.EnumKind:
		return protowire.AppendVarint(b, uint64(v.Enum()))
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return protowire.AppendVarint(b, uint64(v.Int()))
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		return protowire.AppendVarint(b, protowire.EncodeZigZag(v.Int()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return protowire.AppendVarint(b, v.Uint())
	case protoreflect.Fixed32Kind:
		return protowire.AppendFixed32(b, uint32(v.Uint()))
	case protoreflect.Fixed64Kind:
		return protowire.AppendFixed64(b, v.Uint())
	case protoreflect.Sfixed32Kind:
		return protowire.AppendFixed32(b, uint32(v.Int()))
	case protoreflect.Sfixed64Kind:
		return protowire.AppendFixed64(b, uint64(v.Int()))
	case protoreflect.FloatKind:
		return protowire.AppendFixed32(b, math.Float32bits(float32(v.Float())))
	case protoreflect.DoubleKind:
		return protowire.AppendFixed64(b, math.Float64bits(v.Float()))
	case protoreflect.StringKind:
		return protowire.AppendString(b, v.String())
	default:
		return protowire.AppendBytes(b, v.Bytes())
	}
}
