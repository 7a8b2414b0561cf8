package postgres

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/onceward/onceward/store"
)

// The header fields that most answers have are stored as one byte. Both lists may grow at their ends; what is in them
// stays where it is, because it is stored.
var (
	commonNames = []string{
		"Content-Type", "Location", "Etag", "Content-Encoding", "Content-Language", "Content-Disposition", "Content-Location",
		"Last-Modified", "Link", "Vary", "Cache-Control", "Allow", "Retry-After", "Accept-Ranges", "Expires", "X-Content-Type-Options",
	}
	commonFields = []store.HeaderField{
		{Name: "Content-Type", Value: "application/json"},
		{Name: "Content-Type", Value: "application/json; charset=utf-8"},
		{Name: "Content-Type", Value: "application/problem+json"},
		{Name: "Content-Type", Value: "text/plain; charset=utf-8"},
		{Name: "Content-Type", Value: "text/html; charset=utf-8"},
		{Name: "Content-Type", Value: "application/octet-stream"},
		{Name: "Content-Type", Value: "application/xml"},
		{Name: "Content-Type", Value: "application/x-protobuf"},
		{Name: "Cache-Control", Value: "no-store"},
		{Name: "Cache-Control", Value: "no-cache"},
		{Name: "Content-Encoding", Value: "gzip"},
		{Name: "Vary", Value: "Accept-Encoding"},
		{Name: "Vary", Value: "Origin"},
		{Name: "X-Content-Type-Options", Value: "nosniff"},
	}

	codeOfName  = make(map[string]byte)
	codeOfField = make(map[store.HeaderField]byte)
)

// The codes of header fields: zero for one that is written out, then the common names, one for a field that was
// removed, then the common fields. Doubled, with one more for a field that is appended.
const (
	codeLiteral = 0
	firstName   = 1
	codeRemoved = 63
	firstField  = 64
)

func init() {
	for i, name := range commonNames {
		codeOfName[name] = byte(firstName + i)
	}
	for i, field := range commonFields {
		codeOfField[field] = byte(firstField + i)
	}
}

// appendAnswer encodes a response: status, header fields, and the body to the end.
func appendAnswer(dst []byte, r *store.Response) []byte {
	status := uint64(r.Status) << 1
	if r.NotStored {
		status |= 1
	}
	dst = binary.AppendUvarint(dst, status)
	dst = binary.AppendUvarint(dst, uint64(len(r.Header)))
	for i := range r.Header {
		dst = appendHeader(dst, &r.Header[i])
	}
	return append(dst, r.Body...)
}

func appendHeader(dst []byte, f *store.HeaderField) []byte {
	if f.Removed {
		return appendText(append(dst, codeRemoved<<1), f.Name)
	}
	added := byte(0)
	if f.Append {
		added = 1
	}
	if code, ok := codeOfField[store.HeaderField{Name: f.Name, Value: f.Value}]; ok {
		return append(dst, code<<1|added)
	}
	if code, ok := codeOfName[f.Name]; ok {
		return appendText(append(dst, code<<1|added), f.Value)
	}
	dst = appendText(append(dst, codeLiteral<<1|added), f.Name)
	return appendText(dst, f.Value)
}

var errBadAnswer = errors.New("its answer is damaged")

// parseAnswer is the inverse of appendAnswer. The response shares no memory with b.
func parseAnswer(b []byte) (r store.Response, err error) {
	d := reader{rest: b}
	status := d.uint(math.MaxUint16)
	r.Status, r.NotStored = int(status>>1), status&1 == 1
	if n := d.uint(uint64(len(d.rest))); n > 0 {
		r.Header = make([]store.HeaderField, n)
	}
	for i := range r.Header {
		if !d.header(&r.Header[i]) {
			return r, errBadAnswer
		}
	}
	if d.failed || r.Status < 200 || r.Status > 999 {
		return r, errBadAnswer
	}
	if len(d.rest) > 0 {
		r.Body = append([]byte(nil), d.rest...)
	}
	return r, nil
}

func (d *reader) header(f *store.HeaderField) bool {
	code := d.byte()
	added := code&1 == 1
	code >>= 1
	switch {
	case code == codeLiteral:
		f.Name = string(d.text())
		f.Value = string(d.text())
	case code == codeRemoved && !added:
		f.Name, f.Removed = string(d.text()), true
	case int(code-firstName) < len(commonNames) && code < firstField:
		f.Name = commonNames[code-firstName]
		f.Value = string(d.text())
	case code >= firstField && int(code-firstField) < len(commonFields):
		*f = commonFields[code-firstField]
	default:
		return false
	}
	f.Append = added
	return !d.failed
}
