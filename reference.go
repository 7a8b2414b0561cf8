package onceward

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/onceward/onceward/store"
)

// WithoutBody keeps the bodies of a route's answers out of the store, for contents that must not be stored even if it
// is protected. The first caller gets the answer as the handler wrote it. A replay has the status and the header fields
// of this answer, without the fields that describe the body. Its body is the JSON object that [ReferenceBody] makes:
// with the reference of [Operation.SetReference], or else the Location of the answer. For [Guard.Do] the object
// replaces the value, and the text of a stored failure. An answer without a body is stored as it is.
//
// A resolver of such a route should also answer with a reference, because its answer is stored as it is. Default:
// bodies are stored.
func WithoutBody() Option {
	return func(s *settings) error {
		s.withoutBody = true
		return nil
	}
}

// SetReference sets the reference that replays of a route with [WithoutBody] contain: the id or the address of the
// operation's result. It is stored and returned to retries. On other routes it does nothing.
func (o *Operation) SetReference(reference string) {
	if !o.missing() {
		reference = strings.Clone(reference)
		o.reference.Store(&reference)
	}
}

// ReferenceBody returns the body of a replay on a route with [WithoutBody]: {"reference":"…"}, as application/json.
func ReferenceBody(reference string) []byte {
	body, _ := json.Marshal(struct { // a string can always be marshalled
		Reference string `json:"reference"`
	}{reference})
	return body
}

// bodyHeaders lists the headers that describe or name their body, or sign its digest: these headers are wrong for
// another body.
var bodyHeaders = []string{
	"Content-Type", "Content-Length", "Content-Encoding", "Content-Language", "Content-Range", "Content-Disposition",
	"Content-Location", "Content-Md5", "Content-Digest", "Repr-Digest", "Digest", "Etag", "Last-Modified", "Accept-Ranges",
	"Signature", "Signature-Input",
}

// keep prepares the completion of an answer. The caller's answer may contain more than the stored answer.
func (e *execution) keep(response store.Response) {
	e.done, e.own = e.op.completion(response), nil
	if e.settings.withoutBody && len(response.Body) > 0 {
		own := response // a copy, so that only answers of such routes are allocated
		e.own = &own
		e.done.Response = e.op.referring(response)
	}
}

// referring returns an answer with a reference in place of its body.
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
		response.Status = http.StatusOK // the reference is complete
	}
	return response
}

func isLocation(f store.HeaderField) bool { return f.Name == "Location" && !f.Removed }
