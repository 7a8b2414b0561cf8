package rpc

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/onceward/onceward"
)

// Call is a call of a method: the guard's description of it, and the request, which a handler may change.
type Call struct {
	onceward.Call
	request proto.Message
	id      string // of the request, as received
	begun   bool
}

// Call describes a call with this request to the guard. The header contains at least the fields of [Method.Fields];
// room is memory for a small payload. An error means that the key is wrong: pass it to [onceward.Procedure.Refuse].
func (m *Method) Call(scope string, header http.Header, request proto.Message, room []byte) (Call, error) {
	reflected := request.ProtoReflect()
	call := Call{Call: onceward.Call{Scope: scope, Method: m.Name, Actor: scope, Header: header}, request: request}
	if field := m.idField(reflected); field != nil {
		call.id = reflected.Get(field).String()
		if err := m.takeID(&call.Call, call.id); err != nil {
			return call, err
		}
	}
	call.Payload = appendMessage(slices.Grow(room, proto.Size(request)), reflected, m.requestID)
	return call, nil
}

// Begin prepares the request for a run of the handler. If a database undid an earlier run, it restores the request as
// received, because the handler may have changed it.
func (m *Method) Begin(c *Call) error {
	if !c.begun {
		c.begun = true
		return nil
	}
	proto.Reset(c.request)
	if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(c.Payload, c.request); err != nil {
		return err
	}
	if c.id != "" {
		reflected := c.request.ProtoReflect()
		reflected.Set(m.idField(reflected), protoreflect.ValueOfString(c.id))
	}
	return nil
}

// idField returns the field of a request that may carry the key; nil if there is none.
func (m *Method) idField(request protoreflect.Message) protoreflect.FieldDescriptor {
	return request.Descriptor().Fields().ByNumber(m.requestID)
}

// takeID uses the request's id as the key of a call. A key in the header must be the same. A UUID that is only in the
// header becomes the same key as if it were the id: a retry may send it in the other place.
func (m *Method) takeID(call *onceward.Call, id string) error {
	if id == "" {
		call.Key = m.headerID(call.Header)
		return nil
	}
	if !isUUID4(id) {
		return fmt.Errorf("%w: the id of the request is not a UUID of version 4", onceward.ErrBadKey)
	}
	call.Key = strings.ToLower(id)
	for _, name := range m.Fields[:len(m.Fields)-1] {
		lines := call.Header[name]
		if len(lines) > 1 {
			return fmt.Errorf("%w: it was sent %d times; send it once", onceward.ErrBadKey, len(lines))
		}
		for _, line := range lines {
			key, err := m.ParseKey(line)
			if err != nil {
				return err
			}
			if !strings.EqualFold(key, id) {
				return fmt.Errorf("%w: it differs from the id of the request; send one of them", onceward.ErrBadKey)
			}
		}
	}
	return nil
}

// headerID returns the UUID in the header that is the key of a call, in small letters; empty if the key is not a UUID, or
// not valid, so that the guard takes it from the header as it is.
func (m *Method) headerID(header http.Header) string {
	for _, name := range m.Fields[:len(m.Fields)-1] {
		lines := header[name]
		if len(lines) == 0 {
			continue
		}
		if key, err := m.ParseKey(lines[0]); err == nil && len(lines) == 1 && isUUID4(key) {
			return strings.ToLower(key)
		}
		return ""
	}
	return ""
}

// isUUID4 reports whether s is a random UUID in the form of RFC 9562, in either case, as AIP-155 requires.
func isUUID4(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch c := s[i] | 0x20; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if s[i] != '-' {
				return false
			}
		case i == 14:
			if s[i] != '4' {
				return false
			}
		case i == 19:
			if c != '8' && c != '9' && c != 'a' && c != 'b' {
				return false
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return false
		}
	}
	return true
}
