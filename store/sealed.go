package store

import (
	"bytes"
	"context"
	"strings"
)

// This file holds what the contract says about content that is sealed: encrypted by package store/sealed before it
// comes to a store. Stores keep it like any other. Those who read content refuse what is still sealed when it comes to
// them: their program lacks the key ring, and would take the sealed bytes for the content itself.

const (
	// SealedPrefix is what each sealed value begins with, before the version of its format. No text begins so.
	SealedPrefix = "\xf5OWSEAL"
	// SealedField is the name of the one header field of a sealed response. No header field of HTTP has such a name.
	SealedField = ":sealed"
)

// IsSealed reports whether content is a sealed value.
func IsSealed[T string | []byte](content T) bool {
	return strings.HasPrefix(string(content[:min(len(content), len(SealedPrefix))]), SealedPrefix)
}

// IsSealed reports whether the header fields and the body of the response are sealed.
func (r *Response) IsSealed() bool { return len(r.Header) > 0 && r.Header[0].Name == SealedField }

// ErrSealed is returned for content that is sealed, by a program that cannot open it.
var ErrSealed = &UnreadableError{
	Version: RecordVersion,
	Reason:  "it is sealed, and this program reads its store without the key ring: put store/sealed around it",
}

// Content is what of a record can be sealed.
type Content struct {
	// Response is the answer of a completed record.
	Response Response
	// Data is what a phased operation carries from step to step.
	Data []byte
}

// Content returns the content of the record.
func (r *Record) Content() Content { return Content{Response: r.Response, Data: r.Data} }

// Equal reports whether two contents are the same.
func (c *Content) Equal(other *Content) bool {
	return c.Response.Equal(&other.Response) && bytes.Equal(c.Data, other.Data)
}

// Rewriter is a store that can put other bytes in the place of a record's content. It is for the same content under
// another key.
type Rewriter interface {
	// Rewrite replaces the content of a record, if it still is at that attempt and holds exactly what from says, and
	// changes nothing else: neither state nor lease nor any time. Otherwise it returns a [*FencedError]. It changes
	// neither the status of an answer nor whether there is data. Repeated, it succeeds.
	Rewrite(ctx context.Context, c Claim, from, to Content) error
}
