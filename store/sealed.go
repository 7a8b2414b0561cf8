package store

import (
	"bytes"
	"context"
	"strings"
)

// This file defines the contract for sealed content: encrypted by package store/sealed before it reaches a store.
// Stores keep it like any other content. A program that reads content must refuse content that is still sealed: it has
// no key ring, and would use the sealed bytes as the content itself.

const (
	// SealedPrefix is the beginning of each sealed value, before the version of its format. No text begins with it.
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

// Content is the part of a record that can be sealed.
type Content struct {
	// Response is the answer of a completed record.
	Response Response
	// Data is the data that a phased operation passes from step to step.
	Data []byte
}

// Content returns the content of the record.
func (r *Record) Content() Content { return Content{Response: r.Response, Data: r.Data} }

// Equal reports whether two contents are the same.
func (c *Content) Equal(other *Content) bool {
	return c.Response.Equal(&other.Response) && bytes.Equal(c.Data, other.Data)
}

// Rewriter is a store that can replace the bytes of a record's content, to seal the same content with another key.
type Rewriter interface {
	// Rewrite replaces the content of a record if it is still at that attempt and its content equals from. It changes
	// nothing else: neither the state nor the lease nor any time, neither the status of an answer nor whether there is
	// data. Otherwise it returns a [*FencedError]. Repeated, it succeeds.
	Rewrite(ctx context.Context, c Claim, from, to Content) error
}
