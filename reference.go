package onceward

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/onceward/onceward/store"
)

// WithoutBody keeps the bodies of a route's answers out of the store, for contents that must not lie there, whatever
// protects it. The first caller gets the answer as the handler wrote it. A replay has its status and its header fields,
// without those that describe the body, and instead of the body the JSON object that [ReferenceBody] makes: with the
// reference of [Operation.SetReference], or else the Location of the answer. Of [Guard.Do] it is the value that is
// replaced so, and the text of a stored failure. An answer without a body is stored as it is.
//
// A resolver of such a route answers with a reference, too: what it says is stored as it is. Default: bodies are
// stored.
func WithoutBody() Option {
	return func(s *settings) error {
		s.withoutBody = true
		return nil
	}
}

// SetReference says what replays of a route with [WithoutBody] refer to: the id or the address of what the operation
// made. It is stored, and sent to who repeats the request. Elsewhere it does nothing.
func (o *Operation) SetReference(reference string) {
	if o != nil {
		reference = strings.Clone(reference)
		o.reference.Store(&reference)
	}
}

// ReferenceBody is the body of a replay on a route with [WithoutBody]: {"reference":"…"}, as application/json.
func ReferenceBody(reference string) []byte {
	body, _ := json.Marshal(struct { // a string can always be marshalled
		Reference string `json:"reference"`
	}{reference})
	return body
}

// bodyHeaders describe the body that they came with, name it or are signatures over its digest, and say nothing true
// about another one.
var bodyHeaders = []string{
	"Content-Type", "Content-Length", "Content-Encoding", "Content-Language", "Content-Range", "Content-Disposition",
	"Content-Location", "Content-Md5", "Content-Digest", "Repr-Digest", "Digest", "Etag", "Last-Modified", "Accept-Ranges",
	"Signature", "Signature-Input",
}

// keep makes the completion of an answer. What the caller gets may be more than what is stored.
func (e *execution) keep(response store.Response) {
	e.done, e.own = e.op.completion(response), nil
	if e.settings.withoutBody && len(response.Body) > 0 {
		own := response // a copy, so that only the answers of such routes are allocated
		e.own = &own
		e.done.Response = e.op.referring(response)
	}
}

// referring is an answer with a reference in the place of its body.
func (o *Operation) referring(response store.Response) store.Response {
	reference := ""
	if set := o.reference.Load(); set != nil {
		reference = *set
	} else if i := slices.IndexFunc(response.Header, isLocation); i >= 0 {
		reference = response.Header[i].Value
	}
	response.Header = slices.DeleteFunc(slices.Clone(response.Header), func(f store.HeaderField) bool {
		return slices.Contains(bodyHeaders, http.CanonicalHeaderKey(f.Name))
	})
	response.Header = append(response.Header, store.HeaderField{Name: "Content-Type", Value: "application/json"})
	response.Body = ReferenceBody(reference)
	if response.Status == http.StatusPartialContent {
		response.Status = http.StatusOK // the reference is whole
	}
	return response
}

func isLocation(f store.HeaderField) bool { return f.Name == "Location" && !f.Removed }
