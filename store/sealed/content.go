package sealed

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/onceward/onceward/store"
)

// place is where an answer belongs.
type place struct {
	claim store.Claim
	// late means that it is a late completion, not the answer of the record.
	late bool
	// inTx means that the answer is sealed inside a transaction of the store. Its record may then get its token at the
	// commit, and that token is not smaller than the token that the work got.
	inTx bool
}

// header returns the binding of the header fields of an answer.
func (p *place) header(r *store.Response) binding {
	b := binding{kind: kindHeader, parts: []string{p.claim.Scope, p.claim.Key, number(int64(r.Status)), yes(r.NotStored)}}
	if p.late {
		b.kind = kindLateHeader
	}
	if p.inTx {
		b.kept, b.attempt = true, p.claim.Attempt
	} else {
		b.parts = append(b.parts, number(p.claim.Attempt))
	}
	return b
}

// body returns the binding of the body of an answer: the body is bound to its sealed header, and so to the place of the
// header.
func (p *place) body(header string) binding {
	b := binding{kind: kindBody, parts: []string{p.claim.Scope, p.claim.Key, header}}
	if p.late {
		b.kind = kindLateBody
	}
	return b
}

// The first byte of sealed header fields marks whether the answer has a body, so that a removed body is detected.
const (
	withoutBody = 0
	withBody    = 1
)

// usualHeader is room for the header fields of most answers.
const usualHeader = 256

// sealResponse seals the header fields and the body of an answer. They are two values, because lists return header
// fields without bodies.
func (s *Store) sealResponse(p place, r store.Response) (store.Response, error) {
	if s.openOnly {
		return r, nil
	}
	mark := byte(withoutBody)
	if len(r.Body) > 0 {
		mark = withBody
	}
	content := append(make([]byte, 0, usualHeader), mark)
	value, err := s.ring.seal(p.header(&r), store.AppendHeader(content, r.Header))
	if err != nil {
		return r, err
	}
	header := string(value)
	sealed := store.Response{
		Status: r.Status, NotStored: r.NotStored,
		Header: []store.HeaderField{{Name: store.SealedField, Value: header}},
	}
	if mark == withBody {
		sealed.Body, err = s.ring.seal(p.body(header), r.Body)
	}
	return sealed, err
}

// redacted returns the answer to store, as changed by Config.Redact.
func (s *Store) redacted(r store.Response) store.Response {
	if s.redact == nil {
		return r
	}
	r.Header, r.Body = slices.Clone(r.Header), bytes.Clone(r.Body)
	s.redact(&r)
	return r
}

// openResponse opens an answer in place. An answer from a list has no body.
func (s *Store) openResponse(p place, r *store.Response, listed bool) error {
	if !r.IsSealed() {
		if !plainHeader(r.Header) {
			return errBroken
		}
		return s.plain(r.Body)
	}
	if len(r.Header) != 1 || r.Header[0].Append || r.Header[0].Removed {
		return errBroken
	}
	value := r.Header[0].Value
	h, _, err := parseHead([]byte(value))
	if err != nil {
		return err
	}
	p.inTx = h.kept
	content, attempt, err := s.ring.open(p.header(r), []byte(value))
	if err != nil {
		return err
	}
	hasBody := len(content) > 0 && content[0] == withBody
	if len(content) == 0 || attempt > p.claim.Attempt || !listed && hasBody != (len(r.Body) > 0) {
		return errBroken
	}
	if r.Header, err = store.DecodeHeader(content[1:]); err != nil {
		return unreadable(err.Error())
	}
	if listed || !hasBody {
		return nil
	}
	r.Body, _, err = s.ring.open(p.body(value), r.Body)
	return err
}

// plain returns the error for content without the prefix of a seal: for damaged sealed content, and for content that
// Config.RefusePlain refuses. It returns nil for other content.
func (s *Store) plain(content []byte) error {
	switch {
	case !isPlain(content):
		return errBroken
	case s.refusePlain:
		return unreadable("it is not sealed, and Config.RefusePlain refuses that")
	default:
		return nil
	}
}

// sealData seals the data of an operation. Empty data stays empty, because stores distinguish records with and without
// data. The value contains the attempt, because a later attempt reads it.
func (s *Store) sealData(c store.Claim, data []byte) ([]byte, error) {
	if len(data) == 0 || s.openOnly {
		return data, nil
	}
	return s.ring.seal(dataBinding(c.ID, c.Attempt), data)
}

func dataBinding(id store.ID, attempt int64) binding {
	return binding{kind: kindData, parts: []string{id.Scope, id.Key}, kept: true, attempt: attempt}
}

// openData opens the data of a record, which its attempt or an earlier attempt wrote.
func (s *Store) openData(c store.Claim, data []byte) ([]byte, error) {
	switch {
	case len(data) == 0:
		return data, nil
	case !store.IsSealed(data):
		return data, s.plain(data)
	}
	content, attempt, err := s.ring.open(dataBinding(c.ID, 0), data)
	if err == nil && attempt > c.Attempt {
		err = errBroken
	}
	return content, err
}

// openRecord opens the content of a record in place.
func (s *Store) openRecord(rec *store.Record) error { return cmp.Or(s.openContent(rec)) }

// openContent opens the answer and the data of a record in place. Content that cannot be opened is left out: an answer
// then has its status only, like an answer that was not stored.
func (s *Store) openContent(rec *store.Record) (answer, data error) {
	c := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	if rec.Response.Status != 0 {
		if answer = s.openResponse(place{claim: c}, &rec.Response, false); answer != nil {
			rec.Response = store.Response{Status: rec.Response.Status, NotStored: true}
		}
	}
	if rec.Data, data = s.openData(c, rec.Data); data != nil {
		rec.Data = nil
	}
	return answer, data
}

// sealCompletion returns a copy of a completion with the answer sealed.
func (s *Store) sealCompletion(p place, done *store.Completion) (*store.Completion, error) {
	if done == nil {
		return nil, nil
	}
	sealed := *done
	var err error
	sealed.Response, err = s.sealResponse(p, s.redacted(done.Response))
	return &sealed, err
}

// sealCheckpoint seals the data of a checkpoint.
func (s *Store) sealCheckpoint(c store.Claim, p store.Checkpoint) (store.Checkpoint, error) {
	var err error
	p.Data, err = s.sealData(c, p.Data)
	return p, err
}
