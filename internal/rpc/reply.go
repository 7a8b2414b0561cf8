package rpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/onceward/onceward"
)

// Reply is the answer of a method.
type Reply struct {
	// Status is the status of an error; nil for a message.
	Status *status.Status
	// Message is the response.
	Message proto.Message
	// Header and Trailer are sent before and after the message, Meta with an error only.
	Header, Trailer, Meta map[string][]string
}

// ContentType is the content type of a stored reply.
const ContentType = "application/vnd.onceward.rpc"

// These are the numbers of a stored reply's fields: it is a message of protobuf without any other schema.
const (
	fieldStatus protowire.Number = iota + 1
	fieldType
	fieldMessage
	fieldHeader
	fieldTrailer
	fieldMeta
)

// Say sets the outcome that the error of a handler is marked with: that nothing was executed, that the request is
// not valid, or that it is not known what was done. Its text becomes the reason for an operator.
func Say(ctx context.Context, err error) {
	if err == nil {
		return
	}
	op := onceward.FromContext(ctx)
	switch {
	case onceward.IsOutcomeUnknown(err):
		op.Unknown()
		op.SetReason(err.Error())
	case onceward.IsRejected(err):
		op.Reject()
	case onceward.IsNotExecuted(err):
		op.NotExecuted()
		op.SetReason(err.Error())
	default:
		op.HandlerFailed(err)
	}
}

// Answer encodes a reply to be judged and stored. It returns an error for a message that cannot be sent: it is not of
// the method's type, or does not encode.
func (m *Method) Answer(r *Reply) (onceward.Answer, error) {
	answer := onceward.Answer{Status: http.StatusOK, ContentType: ContentType}
	var err error
	if r.Status != nil {
		failed := sendable(r.Status)
		answer.Status = httpStatus(failed.GetCode())
		answer.Body = protowire.AppendTag(answer.Body, fieldStatus, protowire.BytesType)
		answer.Body, err = appendEncoded(answer.Body, failed)
	} else {
		answer.Body, err = m.appendResponse(answer.Body, r.Message)
	}
	if err != nil {
		return answer, err
	}
	answer.Body = m.appendFields(answer.Body, fieldHeader, r.Header)
	answer.Body = m.appendFields(answer.Body, fieldTrailer, r.Trailer)
	answer.Body = m.appendFields(answer.Body, fieldMeta, r.Meta)
	return answer, nil
}

// sendable returns the status of an error as servers send it: its message is valid UTF-8, even if it quotes the caller,
// and its code is not the code of success.
func sendable(s *status.Status) *status.Status {
	text := strings.ToValidUTF8(s.GetMessage(), "\ufffd")
	failed := &status.Status{Code: s.GetCode(), Message: text, Details: s.GetDetails()}
	if failed.GetCode() == int32(code.Code_OK) {
		failed.Code = int32(code.Code_UNKNOWN)
	}
	return failed
}

func (m *Method) appendResponse(b []byte, response proto.Message) ([]byte, error) {
	name := response.ProtoReflect().Descriptor().FullName()
	if want := m.Output.Descriptor().FullName(); name != want {
		return b, fmt.Errorf("onceward: %s answered with a %s, not a %s", m.Name, name, want)
	}
	b = slices.Grow(b, proto.Size(response)+len(name)+16)
	b = protowire.AppendTag(b, fieldType, protowire.BytesType)
	b = protowire.AppendString(b, string(name))
	b = protowire.AppendTag(b, fieldMessage, protowire.BytesType)
	return appendEncoded(b, response)
}

// appendEncoded appends a message after its length.
func appendEncoded(b []byte, message proto.Message) ([]byte, error) {
	b = protowire.AppendVarint(b, uint64(proto.Size(message)))
	return proto.MarshalOptions{}.MarshalAppend(b, message)
}

// appendFields appends the fields of a header that are stored.
func (m *Method) appendFields(b []byte, number protowire.Number, h map[string][]string) []byte {
	if len(h) == 0 {
		return b
	}
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if !m.KeepsField(name) {
			continue
		}
		for _, value := range h[name] {
			b = protowire.AppendTag(b, number, protowire.BytesType)
			b = protowire.AppendVarint(b, uint64(protowire.SizeBytes(len(name))+len(value)))
			b = append(protowire.AppendString(b, name), value...)
		}
	}
	return b
}

// Reply decodes a stored answer. An answer that a resolver or an operator gave is JSON: the response, or the
// google.rpc.Status of an error.
func (m *Method) Reply(a onceward.Answer) (r Reply, err error) {
	if a.ContentType == ContentType {
		return m.decode(a.Body)
	}
	var into proto.Message
	if a.Status >= http.StatusBadRequest {
		r.Status = new(status.Status)
		into = r.Status
	} else {
		r.Message = m.Output.New().Interface()
		into = r.Message
	}
	media, _, _ := mime.ParseMediaType(a.ContentType)
	switch {
	case len(a.Body) == 0 && r.Status == nil:
		return r, nil
	case media != "application/json":
		return r, fmt.Errorf("onceward: a stored answer of type %q is none of %s", a.ContentType, m.Name)
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(a.Body, into); err != nil {
		return r, err
	}
	if r.Status != nil && r.Status.GetCode() == 0 {
		return r, errors.New("onceward: the stored answer of an error has no code")
	}
	return r, nil
}

// decode decodes the output of Answer.
func (m *Method) decode(b []byte) (r Reply, err error) {
	ofType := false
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.BytesType {
			return r, errUnreadable
		}
		value, size := protowire.ConsumeBytes(b[n:])
		if size < 0 {
			return r, errUnreadable
		}
		b = b[n+size:]
		switch {
		case number == fieldStatus:
			r.Status = new(status.Status)
			err = proto.Unmarshal(value, r.Status)
		case number == fieldType:
			ofType = string(value) == string(m.Output.Descriptor().FullName())
		case number == fieldMessage && ofType:
			r.Message = m.Output.New().Interface()
			err = proto.Unmarshal(value, r.Message)
		case number == fieldHeader:
			err = readField(&r.Header, value)
		case number == fieldTrailer:
			err = readField(&r.Trailer, value)
		case number == fieldMeta:
			err = readField(&r.Meta, value)
		default: // includes a message of another type than the method has now
			err = errUnreadable
		}
		if err != nil {
			return r, err
		}
	}
	if r.Status == nil && r.Message == nil {
		return r, errUnreadable
	}
	return r, nil
}

var errUnreadable = errors.New("onceward: the stored answer has a form that this program does not know")

func readField(h *map[string][]string, b []byte) error {
	name, n := protowire.ConsumeString(b)
	if n < 0 {
		return errUnreadable
	}
	if *h == nil {
		*h = make(map[string][]string)
	}
	(*h)[name] = append((*h)[name], string(b[n:]))
	return nil
}
