package rpc

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/onceward/onceward"
)

// statuses maps the codes of a handler's answer to statuses of HTTP, by which the guard judges it (rule E5). They are
// the ones that google.rpc.Code names, except for CANCELLED: 499 would be stored as an answer, and leaves open what was
// done as DEADLINE_EXCEEDED does.
var statuses = map[code.Code]int{
	code.Code_OK:                  http.StatusOK,
	code.Code_CANCELLED:           http.StatusGatewayTimeout,
	code.Code_UNKNOWN:             http.StatusInternalServerError,
	code.Code_INVALID_ARGUMENT:    http.StatusBadRequest,
	code.Code_DEADLINE_EXCEEDED:   http.StatusGatewayTimeout,
	code.Code_NOT_FOUND:           http.StatusNotFound,
	code.Code_ALREADY_EXISTS:      http.StatusConflict,
	code.Code_PERMISSION_DENIED:   http.StatusForbidden,
	code.Code_RESOURCE_EXHAUSTED:  http.StatusTooManyRequests,
	code.Code_FAILED_PRECONDITION: http.StatusBadRequest,
	code.Code_ABORTED:             http.StatusConflict,
	code.Code_OUT_OF_RANGE:        http.StatusBadRequest,
	code.Code_UNIMPLEMENTED:       http.StatusNotImplemented,
	code.Code_INTERNAL:            http.StatusInternalServerError,
	code.Code_UNAVAILABLE:         http.StatusServiceUnavailable,
	code.Code_DATA_LOSS:           http.StatusInternalServerError,
	code.Code_UNAUTHENTICATED:     http.StatusUnauthorized,
}

// httpStatus returns the status of a code; an unknown code counts as UNKNOWN.
func httpStatus(c int32) int {
	if s, ok := statuses[code.Code(c)]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// ProblemFields returns the header fields for a problem: how an unknown caller could authenticate (rule A8).
func ProblemFields(p *onceward.Problem) map[string][]string {
	if len(p.Challenges) == 0 {
		return nil
	}
	values := make([]string, len(p.Challenges))
	for i, challenge := range p.Challenges {
		values[i] = strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return ' '
			}
			return r
		}, challenge)
	}
	return map[string][]string{"Www-Authenticate": values}
}

// ErrorDomain is the domain of the ErrorInfo in Onceward's own answers.
const ErrorDomain = "onceward"

// ProblemStatus returns a problem as the status of a call, with an ErrorInfo that describes it, and a RetryInfo if the
// time of a retry is known.
func ProblemStatus(p *onceward.Problem) *status.Status {
	s := &status.Status{Code: int32(problemCode(p)), Message: p.Error()}
	add := func(detail proto.Message) {
		if packed, err := anypb.New(detail); err == nil { // a message of text always packs
			s.Details = append(s.Details, packed)
		}
	}
	add(&errdetails.ErrorInfo{
		Reason: strings.ToUpper(strings.ReplaceAll(p.Code, "-", "_")), Domain: ErrorDomain,
		Metadata: map[string]string{
			"code": p.Code, "type": p.Type, "instance": p.Instance, "title": p.Title, "detail": p.Detail,
			"status": strconv.Itoa(p.Status), "retryable": strconv.FormatBool(p.Retryable),
		},
	})
	if p.RetryAfter > 0 {
		add(&errdetails.RetryInfo{RetryDelay: durationpb.New(p.RetryAfter)})
	}
	return s
}

// ProblemOf returns the problem in a status made by [ProblemStatus]; nil if there is none.
func ProblemOf(s *status.Status) (p *onceward.Problem) {
	var wait time.Duration
	for _, packed := range s.GetDetails() {
		detail, err := packed.UnmarshalNew()
		if err != nil {
			continue // of an unknown type
		}
		switch d := detail.(type) {
		case *errdetails.RetryInfo:
			wait = d.GetRetryDelay().AsDuration()
		case *errdetails.ErrorInfo:
			about := d.GetMetadata()
			code, err := strconv.Atoi(about["status"])
			if d.GetDomain() != ErrorDomain || err != nil || code < 400 || code > 599 {
				continue
			}
			p = &onceward.Problem{
				Type: about["type"], Title: about["title"], Status: code, Detail: about["detail"],
				Instance: about["instance"], Code: about["code"], Retryable: about["retryable"] == "true",
			}
		}
	}
	if p != nil {
		p.RetryAfter = wait
	}
	return p
}

// problemCode returns the code of a problem. UNAVAILABLE, which clients retry automatically, is for problems after
// which the same call may be sent again immediately, because it was not executed or is in flight. An unknown outcome is
// UNKNOWN: ABORTED would invite the client to repeat everything, with another key.
func problemCode(p *onceward.Problem) code.Code {
	switch name := p.OwnCode(); {
	case name == "outcome-unknown":
		return code.Code_UNKNOWN
	case name == "in-progress":
		return code.Code_UNAVAILABLE
	case name == "response-not-stored":
		return code.Code_ALREADY_EXISTS
	}
	switch p.Status {
	case http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		return code.Code_FAILED_PRECONDITION
	case http.StatusUnauthorized:
		return code.Code_UNAUTHENTICATED
	case http.StatusTooManyRequests:
		return code.Code_RESOURCE_EXHAUSTED
	case http.StatusServiceUnavailable:
		return code.Code_UNAVAILABLE
	}
	if p.Status < http.StatusInternalServerError {
		return code.Code_INVALID_ARGUMENT
	}
	return code.Code_INTERNAL
}
