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
	// late says that it is a late completion, not the answer of the record.
	late bool
	// inTx says that it is sealed inside of a transaction of the store. The token of its record may then be given out
	// with the commit, and is not smaller than the one that the work has seen.
	inTx bool
}

// header is the binding of the header fields of an answer.
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

// body is the binding of the body of an answer: it belongs to its sealed header, and so to where that belongs.
func (p *place) body(header string) binding {
	b := binding{kind: kindBody, parts: []string{p.claim.Scope, p.claim.Key, header}}
	if p.late {
		b.kind = kindLateBody
	}
	return b
}

// The first byte of sealed header fields says whether a body belongs to them, so that none can be taken away.
const (
	withoutBody = 0
	withBody    = 1
)

// usualHeader is room for the header fields of most answers.
const usualHeader = 256

// sealResponse seals the header fields and the body of an answer. They are two values, because lists have header fields
// and no bodies.
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

// redacted is an answer as it is stored.
func (s *Store) redacted(r store.Response) store.Response {
	if s.redact == nil {
		return r
	}
	r.Header, r.Body = slices.Clone(r.Header), bytes.Clone(r.Body)
	s.redact(&r)
	return r
}

// openResponse opens an answer in its place. One from a list has no body.
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

// plain is what becomes of content that has no mark of a seal.
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

// sealData seals what an operation carries. Nothing stays nothing: stores tell a record that carries something from one
// that does not. The value keeps the attempt, because a later one reads it.
func (s *Store) sealData(c store.Claim, data []byte) ([]byte, error) {
	if len(data) == 0 || s.openOnly {
		return data, nil
	}
	return s.ring.seal(dataBinding(c.ID, c.Attempt), data)
}

func dataBinding(id store.ID, attempt int64) binding {
	return binding{kind: kindData, parts: []string{id.Scope, id.Key}, kept: true, attempt: attempt}
}

// openData opens what a record carries. It was written by its attempt or an earlier one.
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

// openRecord opens the content of a record in its place.
func (s *Store) openRecord(rec *store.Record) error { return cmp.Or(s.openContent(rec)) }

// openContent opens the answer and the data of a record in their places. What does not open is left out: an answer is
// then shown with its status alone, as one that was not stored.
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

// sealCompletion seals the answer of a completion, which stays as it is.
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
