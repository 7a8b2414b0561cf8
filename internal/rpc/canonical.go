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

// field is one field of a message: one that the program knows, or else the bytes of a record as it came.
type field struct {
	number     protoreflect.FieldNumber
	descriptor protoreflect.FieldDescriptor
	value      protoreflect.Value
	record     []byte
}

// appendMessage appends a message in the one form that stands for what it says: the wire format, with fields in the
// order of their numbers and maps in that of their keys. The deterministic mode of the protobuf library promises no
// more than one form within one build, and puts the fields that the program does not know behind all others: two nodes
// in the middle of a deploy would then take one request for two. Here a field that only the newer schema knows stands
// where it stands for the newer program.
//
// What a program does not know it takes as it was sent. So a request with an unknown field that a client may encode in
// more than one way, a map above all, can still look different.
func appendMessage(b []byte, m protoreflect.Message, without protoreflect.FieldNumber) []byte {
	c := collectors.Get().(*collector)
	defer c.free()
	c.without = without
	m.Range(c.visit)
	for unknown := m.GetUnknown(); len(unknown) > 0; {
		number, _, n := protowire.ConsumeField(unknown)
		if n < 0 { // which no decoder lets pass
			number, n = math.MaxInt32, len(unknown)
		}
		c.fields = append(c.fields, field{number: number, record: unknown[:n]})
		unknown = unknown[n:]
	}
	slices.SortStableFunc(c.fields, func(a, b field) int { return cmp.Compare(a.number, b.number) })
	for i := range c.fields {
		b = c.fields[i].append(b)
	}
	return b
}

// collector gathers the fields of a message. It is used again, so that a call of few fields allocates nothing for it.
type collector struct {
	fields  []field
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
		c.fields = append(c.fields, field{number: d.Number(), descriptor: d, value: v})
	}
	return true
}

func (c *collector) free() {
	clear(c.fields)
	c.fields = c.fields[:0]
	collectors.Put(c)
}

func (f *field) append(b []byte) []byte {
	switch d := f.descriptor; {
	case d == nil:
		return append(b, f.record...)
	case d.IsMap():
		return appendMap(b, d, f.value.Map())
	case d.IsList() && d.IsPacked():
		b = protowire.AppendTag(b, d.Number(), protowire.BytesType)
		return appendSized(b, func(b []byte) []byte {
			for i := range f.value.List().Len() {
				b = appendValue(b, d, f.value.List().Get(i))
			}
			return b
		})
	case d.IsList():
		for i := range f.value.List().Len() {
			b = appendField(b, d, f.value.List().Get(i))
		}
		return b
	default:
		return appendField(b, d, f.value)
	}
}

// appendMap appends the entries of a map in the order of their bytes.
func appendMap(b []byte, d protoreflect.FieldDescriptor, m protoreflect.Map) []byte {
	entries := make([][]byte, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		entries = append(entries, appendField(appendField(nil, d.MapKey(), k.Value()), d.MapValue(), v))
		return true
	})
	slices.SortFunc(entries, bytes.Compare)
	for _, entry := range entries {
		b = protowire.AppendTag(b, d.Number(), protowire.BytesType)
		b = protowire.AppendBytes(b, entry)
	}
	return b
}

// appendField appends one value with its tag.
func appendField(b []byte, d protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	b = protowire.AppendTag(b, d.Number(), wireType(d.Kind()))
	b = appendValue(b, d, v)
	if d.Kind() == protoreflect.GroupKind {
		b = protowire.AppendTag(b, d.Number(), protowire.EndGroupType)
	}
	return b
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

func appendValue(b []byte, d protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
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
	case protoreflect.BytesKind:
		return protowire.AppendBytes(b, v.Bytes())
	case protoreflect.GroupKind:
		return appendMessage(b, v.Message(), 0)
	default:
		return appendSized(b, func(b []byte) []byte { return appendMessage(b, v.Message(), 0) })
	}
}

// appendSized appends what a function appends, behind its length.
func appendSized(b []byte, content func([]byte) []byte) []byte {
	start := len(b)
	b = content(b)
	var length [10]byte
	return slices.Insert(b, start, protowire.AppendVarint(length[:0], uint64(len(b)-start))...)
}
