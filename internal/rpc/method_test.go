package rpc

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/store/memory"
)

func newGuard(t *testing.T, config onceward.Config) *onceward.Guard {
	t.Helper()
	config.Secret = []byte("the secret of the tests")
	guard, err := onceward.New(memory.New(), config)
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

var reserved = []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}

func newMethod(t *testing.T) *Method {
	t.Helper()
	m, err := NewMethod(newGuard(t, onceward.Config{}), "/onceward.test.Payments/Create", "request_id", reserved)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestNewMethod(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, onceward.Config{})
	for _, test := range []struct {
		name, requestID string
		options         []onceward.Option
		want            string
	}{
		{"onceward.test.Payments.Create", "", reserved, "not the full name"},
		{"/onceward.test.Paymnts/Create", "", reserved, "no service of that name"},
		{"/onceward.test.Payments/Creat", "", reserved, "no such method"},
		{"/onceward.test.Payment/Create", "", reserved, "no such method"},
		{"/onceward.test.Payments/Watch", "", reserved, "streams"},
		{"/onceward.test.Payments/Create", "id", reserved, `no string "id"`},
		{"/onceward.test.Payments/Create", "amount", reserved, `no string "amount"`},
		{"/onceward.test.Payments/Create", "", nil, "has no mode of execution"},
	} {
		_, err := NewMethod(guard, test.name, test.requestID, test.options)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v", test, err)
		}
	}
}

func TestChangesState(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"/onceward.test.Payments/Create": true, "/onceward.test.Payments/Watch": true,
		"/onceward.test.Payments/Get": false, "/not.Known/Get": true,
	} {
		if got := ChangesState(name); got != want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// TestRequestID: the key is in the header, or the request, or the same in both. A UUID is the same key wherever it is, in
// capitals or not. Any other key in the header is left to the guard.
func TestRequestID(t *testing.T) {
	t.Parallel()
	const id, bad = "8e03978e-40d5-43dd-bc93-6894a57f9324", "not valid"
	m := newMethod(t)
	for _, test := range []struct {
		what, id string
		header   []string
		want     string // the key that the guard is given
	}{
		{"neither, or in the header", "", []string{"k"}, ""},
		{"UUID in the header", "", []string{id}, id},
		{"UUID in the header, in capitals", "", []string{strings.ToUpper(id)}, id},
		{"UUID in the header, in capitals and quotes", "", []string{`"` + strings.ToUpper(id) + `"`}, id},
		{"UUID in the header, twice", "", []string{id, id}, ""},
		{"capitals in the header", "", []string{"K"}, ""},
		{"id", id, nil, id},
		{"id in capitals", strings.ToUpper(id), nil, id},
		{"both", id, []string{id}, id},
		{"both, quoted", id, []string{`"` + id + `"`}, id},
		{"another", id, []string{"k"}, bad},
		{"two lines", id, []string{id, id}, bad},
		{"one that is not valid", id, []string{`"` + id}, bad},
		{"not a UUID", "seven", nil, bad},
		{"of version 1", "8e03978e-40d5-13dd-bc93-6894a57f9324", nil, bad},
		{"of another variant", "8e03978e-40d5-43dd-cc93-6894a57f9324", nil, bad},
		{"not hexadecimal", "8e03978e-40d5-43dd-bc93-6894a57f932g", nil, bad},
		{"without dashes", "8e03978e440d5443dd4bc9346894a57f9324", nil, bad},
	} {
		header := http.Header{onceward.FirstSentHeader: {"then"}}
		if test.header != nil {
			header["Idempotency-Key"] = test.header
		}
		call, err := m.Call("scope", header, &paymentpb.Payment{RequestId: test.id}, nil)
		if errors.Is(err, onceward.ErrBadKey) != (test.want == bad) || err == nil && call.Key != test.want {
			t.Errorf("%s: got %q, error %v", test.what, call.Key, err)
		}
		if got := call.Header.Get(onceward.FirstSentHeader); got != "then" {
			t.Errorf("%s: the time of first sending is %q", test.what, got)
		}
		if got := header["Idempotency-Key"]; len(got) != len(test.header) {
			t.Errorf("%s: the header of the request became %q", test.what, got)
		}
	}
}

// TestReply: what is stored comes back, but for what is never stored.
func TestReply(t *testing.T) {
	t.Parallel()
	m := newMethod(t)
	failed := &status.Status{Code: int32(code.Code_NOT_FOUND), Message: "no"}
	if err := addDetail(failed, wrapperspb.Int32(7)); err != nil {
		t.Fatal(err)
	}
	for what, reply := range map[string]*Reply{
		"message": {
			Message: &paymentpb.Receipt{Body: []byte{0, 0xff}, Labels: map[string]string{"a": "b"}},
			Header:  map[string][]string{"location": {"/7", "/8"}, "set-cookie": {"secret"}, "x-request-id": {"1"}},
			Trailer: map[string][]string{"X-Cost": {"1"}},
		},
		"empty": {Message: &paymentpb.Receipt{}},
		"error": {Status: failed, Meta: map[string][]string{"X-Why": {"so"}}},
	} {
		answer, err := m.Answer(reply)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Reply(answer)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got.Status, reply.Status) || reply.Message != nil && !proto.Equal(got.Message, reply.Message) {
			t.Errorf("%s: got %v", what, got)
		}
		delete(reply.Header, "set-cookie")
		delete(reply.Header, "x-request-id")
		for _, both := range [][2]map[string][]string{
			{got.Header, reply.Header}, {got.Trailer, reply.Trailer}, {got.Meta, reply.Meta},
		} {
			if len(both[0]) != len(both[1]) {
				t.Errorf("%s: got %v, want %v", what, both[0], both[1])
			}
			for name, values := range both[1] {
				if strings.Join(both[0][name], ",") != strings.Join(values, ",") {
					t.Errorf("%s: got %v, want %v", what, both[0], both[1])
				}
			}
		}
	}
	if _, err := m.Answer(&Reply{Message: &paymentpb.Payment{}}); err == nil {
		t.Error("a message of another type is stored")
	}
	if _, err := m.Answer(&Reply{Message: &paymentpb.Receipt{Labels: map[string]string{"\xff": ""}}}); err == nil {
		t.Error("a message that does not encode is stored")
	}
}

func addDetail(s *status.Status, detail proto.Message) error {
	packed := ProblemStatus(&onceward.Problem{Code: "mismatch"}).GetDetails()[0]
	if err := packed.MarshalFrom(detail); err != nil {
		return err
	}
	s.Details = append(s.Details, packed)
	return nil
}

// TestReplyOfOthers: a resolver or an operator answers in JSON, and what cannot be read is never guessed.
func TestReplyOfOthers(t *testing.T) {
	t.Parallel()
	m := newMethod(t)
	const json = "application/json; charset=utf-8"
	for what, answer := range map[string]onceward.Answer{
		"response": {Status: 201, ContentType: json, Body: []byte(`{"status": 201, "not": "known"}`)},
		"error":    {Status: 404, ContentType: json, Body: []byte(`{"code": 5, "message": "no"}`)},
		"nothing":  {Status: 200},
	} {
		got, err := m.Reply(answer)
		switch {
		case err != nil:
			t.Errorf("%s: %v", what, err)
		case what == "error" && (got.Status.GetCode() != 5 || got.Status.GetMessage() != "no"):
			t.Errorf("%s: got %v", what, got)
		case what == "response" && got.Message.(*paymentpb.Receipt).GetStatus() != 201:
			t.Errorf("%s: got %v", what, got)
		case what != "error" && got.Message == nil:
			t.Errorf("%s: got %v", what, got)
		}
	}
	other := []byte{0x12, 1, 'x', 0x1a, 0}
	for what, answer := range map[string]onceward.Answer{
		"text":              {Status: 200, ContentType: "text/plain", Body: []byte("done")},
		"not JSON":          {Status: 200, ContentType: json, Body: []byte("done")},
		"an error unsaid":   {Status: 404, ContentType: json, Body: []byte(`{}`)},
		"an empty error":    {Status: 404},
		"cut off":           {Status: 200, ContentType: ContentType, Body: []byte{0x12, 9, 'x'}},
		"not fields":        {Status: 200, ContentType: ContentType, Body: []byte{0x08, 9}},
		"a field to come":   {Status: 200, ContentType: ContentType, Body: []byte{0x3a, 0}},
		"another message":   {Status: 200, ContentType: ContentType, Body: other},
		"neither":           {Status: 200, ContentType: ContentType},
		"a field cut off":   {Status: 200, ContentType: ContentType, Body: []byte{0x22, 1, 9}},
		"a status cut off":  {Status: 400, ContentType: ContentType, Body: []byte{0x0a, 1, 0x08}},
		"a message cut off": {Status: 200, ContentType: ContentType, Body: []byte{0x1a, 1, 0x08}},
	} {
		if got, err := m.Reply(answer); err == nil {
			t.Errorf("%s: got %+v", what, got)
		}
	}
}

// TestStatuses: every code of google.rpc.Code has a meaning, and codes that leave open what was done are never stored.
func TestStatuses(t *testing.T) {
	t.Parallel()
	for number := range code.Code_name {
		if _, ok := statuses[code.Code(number)]; !ok {
			t.Errorf("%s has no status", code.Code(number))
		}
	}
	for _, c := range []code.Code{code.Code_CANCELLED, code.Code_DEADLINE_EXCEEDED} {
		if got := httpStatus(int32(c)); got != http.StatusGatewayTimeout {
			t.Errorf("%s is %d", c, got)
		}
	}
	if got := httpStatus(99); got != http.StatusInternalServerError {
		t.Errorf("a code that does not exist is %d", got)
	}
}

// TestProblemStatus: by default clients retry UNAVAILABLE alone, so that may be retried, and what is not retryable has
// another code.
func TestProblemStatus(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		status int
		want   code.Code
	}{
		{"missing-key", 400, code.Code_INVALID_ARGUMENT},
		{"unauthenticated", 401, code.Code_UNAUTHENTICATED},
		{"first-sent-too-old", 412, code.Code_FAILED_PRECONDITION},
		{"body-too-large", 413, code.Code_INVALID_ARGUMENT},
		{"mismatch", 422, code.Code_FAILED_PRECONDITION},
		{"in-progress", 409, code.Code_UNAVAILABLE},
		{"outcome-unknown", 409, code.Code_UNKNOWN},
		{"outcome-unknown", 500, code.Code_UNKNOWN},
		{"response-not-stored", 409, code.Code_ALREADY_EXISTS},
		{"new-keys-refused", 429, code.Code_RESOURCE_EXHAUSTED},
		{"handler-failed", 500, code.Code_INTERNAL},
		{"store-unavailable", 503, code.Code_UNAVAILABLE},
	} {
		got := ProblemStatus(&onceward.Problem{
			Type: "https://example.com/problems#" + test.name, Code: test.name, Status: test.status, Title: "no",
			Retryable: true, RetryAfter: 2e9, Instance: "urn:uuid:7",
		})
		if code.Code(got.GetCode()) != test.want {
			t.Errorf("%s %d is %s", test.name, test.status, code.Code(got.GetCode()))
		}
		info, retry := new(errdetails.ErrorInfo), new(errdetails.RetryInfo)
		if err := errors.Join(got.GetDetails()[0].UnmarshalTo(info), got.GetDetails()[1].UnmarshalTo(retry)); err != nil {
			t.Fatal(err)
		}
		if info.GetReason() != strings.ToUpper(strings.ReplaceAll(test.name, "-", "_")) || info.GetDomain() != "onceward" ||
			info.GetMetadata()["code"] != test.name || info.GetMetadata()["retryable"] != "true" {
			t.Errorf("%s: got %v", test.name, info)
		}
		if !proto.Equal(retry.GetRetryDelay(), durationpb.New(2e9)) {
			t.Errorf("%s: got %v", test.name, retry)
		}
	}
}

// TestErrorsThatSayOK: an error is none of what commits, whatever its code.
func TestErrorsThatSayOK(t *testing.T) {
	t.Parallel()
	m := newMethod(t)
	answer, err := m.Answer(&Reply{Status: &status.Status{Code: int32(code.Code_OK), Message: "no"}})
	if err != nil || answer.Status != http.StatusInternalServerError {
		t.Fatalf("got %d, error %v", answer.Status, err)
	}
	if got, err := m.Reply(answer); err != nil || got.Status.GetCode() != int32(code.Code_UNKNOWN) {
		t.Errorf("the replay is %v, error %v", got.Status, err)
	}
}

// TestErrorsThatAreNoText: a message with bytes of the caller's does not turn a refusal into a failure.
func TestErrorsThatAreNoText(t *testing.T) {
	t.Parallel()
	m := newMethod(t)
	answer, err := m.Answer(&Reply{Status: &status.Status{Code: int32(code.Code_INVALID_ARGUMENT), Message: "no \xff"}})
	if err != nil || answer.Status != http.StatusBadRequest {
		t.Fatalf("got %d, error %v", answer.Status, err)
	}
	if got, err := m.Reply(answer); err != nil || got.Status.GetMessage() != "no \ufffd" {
		t.Errorf("the replay is %v, error %v", got.Status, err)
	}
}
