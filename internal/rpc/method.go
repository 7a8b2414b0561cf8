// Package rpc is shared by the adapters for gRPC and Connect: it defines how a call of a unary method of protobuf is
// identified, how its answer is stored, and the meaning of each code. It depends on neither framework.
package rpc

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/onceward/onceward"
)

// Method is a unary method that is protected.
type Method struct {
	*onceward.Procedure
	// Name is the full name of the method, as in "/acme.payments.v1.Payments/Create". It is also the name of the
	// operation, unless an option sets another.
	Name string
	// Fields are the canonical names of the request's header fields that are read: see [onceward.Procedure.RequestFields].
	Fields []string
	// Output is the type of the response.
	Output protoreflect.MessageType

	requestID protoreflect.FieldNumber // zero if keys come only by metadata
}

// NewMethod returns a method that is linked into the program. It refuses a name that is not a method's, a method that
// streams, and a field that cannot carry a key. RequestID is the name of that field; empty for none.
func NewMethod(guard *onceward.Guard, name, requestID string, options []onceward.Option) (*Method, error) {
	found, err := find(name)
	if err != nil {
		return nil, err
	}
	if found.IsStreamingClient() || found.IsStreamingServer() {
		return nil, fmt.Errorf("onceward: %s streams: only unary methods can be protected, because a stream cannot be "+
			"answered again", name)
	}
	m := &Method{Name: name}
	if m.Output, err = protoregistry.GlobalTypes.FindMessageByName(found.Output().FullName()); err != nil {
		return nil, fmt.Errorf("onceward: the response of %s: %w", name, err)
	}
	if requestID != "" {
		field := found.Input().Fields().ByName(protoreflect.Name(requestID))
		if field == nil || field.Kind() != protoreflect.StringKind || field.IsList() {
			return nil, fmt.Errorf("onceward: %s has no string %q to carry a key", found.Input().FullName(), requestID)
		}
		m.requestID = field.Number()
	}
	options = append([]onceward.Option{onceward.OperationName(name)}, options...)
	if m.Procedure, err = guard.Procedure(options...); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	m.Fields = m.RequestFields()
	return m, nil
}

// find returns a method by its full name.
func find(name string) (protoreflect.MethodDescriptor, error) {
	service, method, ok := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	if !ok || !strings.HasPrefix(name, "/") {
		return nil, fmt.Errorf("onceward: %q is not the full name of a method, such as /acme.payments.v1.Payments/Create",
			name)
	}
	descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, fmt.Errorf("onceward: %s: no service of that name is linked into the program: %w", name, err)
	}
	if s, ok := descriptor.(protoreflect.ServiceDescriptor); ok {
		if found := s.Methods().ByName(protoreflect.Name(method)); found != nil {
			return found, nil
		}
	}
	return nil, fmt.Errorf("onceward: %s: the service has no such method", name)
}

// ChangesState reports whether a method may need protection: the option idempotency_level does not mark it as free of
// side effects, or as idempotent. An unknown method may.
func ChangesState(name string) bool {
	found, err := find(name)
	if err != nil {
		return true
	}
	options, _ := found.Options().(*descriptorpb.MethodOptions)
	return options.GetIdempotencyLevel() == descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
}

// HasHTTPRule reports whether the schema defines how a gateway serves a method over HTTP, by the option
// google.api.http.
func HasHTTPRule(name string) (has bool) {
	found, err := find(name)
	if err != nil {
		return false
	}
	found.Options().ProtoReflect().Range(func(option protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		has = option.FullName() == "google.api.http"
		return !has
	})
	return has
}

// Message returns a framework's value as a message of protobuf.
func Message(v any) (proto.Message, error) {
	m, ok := v.(proto.Message)
	if !ok || !m.ProtoReflect().IsValid() {
		return nil, fmt.Errorf("onceward: %T is not a message of protobuf", v)
	}
	return m, nil
}
