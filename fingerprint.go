package onceward

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/onceward/onceward/internal/canon"
	"github.com/onceward/onceward/store"
)

// rules is the version of the encoding in this file. A change that changes a hash needs a new version, and the old
// encoding stays for as long as records made with it may exist.
const rules = 1

// These are the kinds of encodings. The kind is the first byte, and each part has its length, or the number of its
// parts, in front: two different kinds of values never have equal encodings (rule F1).
const (
	kindRaw byte = iota + 1
	kindJSON
	kindForm
	kindMultipart
	kindCustom
	kindCall
	kindParts
)

// These are the kinds of a query.
const (
	queryParsed byte = iota + 1
	queryRaw
)

// FingerprintFunc returns what distinguishes a request from others, in place of its query, media type and body. The
// method, the operation and the path count anyway. The function may keep or change the body, which is a copy. An error
// is answered with 400 and its text, and nothing is executed.
type FingerprintFunc func(r *http.Request, body []byte) ([]byte, error)

// fingerprintOptions selects what counts on a route (rule F4).
type fingerprintOptions struct {
	selection *canon.Selection
	headers   []string
	custom    FingerprintFunc
}

// encoder turns a request into a hash. It is pooled, because the hot path must not allocate.
type encoder struct {
	hash    hash.Hash
	message []byte
	prefix  [binary.MaxVarintLen64]byte
	digest  [sha256.Size]byte
}

// maxPooledMessage bounds the memory that an idle encoder holds.
const maxPooledMessage = 64 << 10

var encoders = sync.Pool{New: func() any { return &encoder{hash: sha256.New()} }}

func newEncoder() *encoder {
	e := encoders.Get().(*encoder)
	e.hash.Reset()
	e.message = append(e.message[:0], kindRaw)
	return e
}

func (e *encoder) free() {
	if cap(e.message) <= maxPooledMessage {
		encoders.Put(e)
	}
}

// field adds one length-prefixed field to the message.
func (e *encoder) field(s string) { e.message = appendField(e.message, s) }

// count adds the number of the fields that follow.
func (e *encoder) count(n int) { e.message = binary.AppendUvarint(e.message, uint64(n)) }

// values adds a multimap: sorted by name, the values of one name in their order.
func (e *encoder) values(values map[string][]string) {
	e.count(len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		e.field(name)
		e.fields(values[name])
	}
}

// fields adds a list of fields.
func (e *encoder) fields(values []string) {
	e.count(len(values))
	for _, value := range values {
		e.field(value)
	}
}

// sum ends the message with its last part, which is not copied, and hashes it all.
func (e *encoder) sum(kind byte, last []byte) {
	e.message[0] = kind
	e.message = binary.AppendUvarint(e.message, uint64(len(last)))
	e.hash.Write(e.message)
	e.hash.Write(last)
	e.hash.Sum(e.digest[:0])
}

// request hashes the content of a request (rule F1).
func (e *encoder) request(r *http.Request, operation string, body []byte, options *fingerprintOptions) error {
	e.field(r.Method)
	e.field(operation)
	e.field(target(r))
	e.count(len(options.headers))
	for _, name := range options.headers {
		e.field(name)
		e.fields(r.Header[name])
	}
	if options.custom != nil {
		custom, err := options.custom(r, bytes.Clone(body))
		if err != nil {
			return err
		}
		e.sum(kindCustom, custom)
		return nil
	}
	e.query(r.URL.RawQuery)
	if start := len(e.message); !e.understood(r.Header, body, options.selection) {
		e.message = e.message[:start]
		e.raw(r.Header, body)
	}
	return nil
}

// query adds the query's values, or the query as written if it cannot be parsed.
func (e *encoder) query(raw string) {
	if raw == "" {
		e.message = append(e.message, queryParsed)
		e.count(0)
		return
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		e.message = append(e.message, queryRaw)
		e.field(raw)
		return
	}
	e.message = append(e.message, queryParsed)
	e.values(values)
}

// raw ends the message with the body as received, after its media types and encodings.
func (e *encoder) raw(h http.Header, body []byte) {
	types := h["Content-Type"]
	e.count(len(types))
	for _, line := range types {
		e.mediaType(parseMediaType(line))
	}
	e.fields(h["Content-Encoding"])
	e.sum(kindRaw, body)
}

// understood ends the message with the parsed content of the body, or reports that it cannot be parsed: the body is
// then hashed as raw bytes. A body with two lines of Content-Type is hashed as raw bytes too, because it is ambiguous
// which line counts.
func (e *encoder) understood(h http.Header, body []byte, selection *canon.Selection) bool {
	types := h["Content-Type"]
	if len(types) != 1 || len(h["Content-Encoding"]) > 0 {
		return false
	}
	kind, params := "application/json", map[string]string(nil)
	if types[0] != "application/json; charset=utf-8" { // as most clients write it
		kind, params = parseMediaType(types[0])
	}
	switch {
	case isJSON(kind):
		e.mediaType(kind, withoutUTF8(params))
		return e.jsonBody(body, selection)
	case kind == "application/x-www-form-urlencoded":
		e.mediaType(kind, withoutUTF8(params))
		return e.formBody(body)
	case kind == "multipart/form-data":
		boundary := params["boundary"]
		delete(params, "boundary")
		e.mediaType(kind, params)
		return boundary != "" && e.multipartBody(boundary, body)
	default:
		return false
	}
}

// mediaType adds a media type with its parameters, because a version may be one of them.
func (e *encoder) mediaType(kind string, params map[string]string) {
	e.field(kind)
	e.count(len(params))
	if len(params) == 0 {
		return // most have none, and an iterator allocates
	}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		e.field(name)
		e.field(params[name])
	}
}

// jsonBody ends the message with the canonical form, or reports that the body is not JSON by rule F2.
func (e *encoder) jsonBody(body []byte, selection *canon.Selection) bool {
	start := len(e.message)
	extended, err := canon.Append(e.message, body, selection)
	if err != nil {
		return false
	}
	e.message = extended
	e.message[0] = kindJSON
	// The canonical form shares the buffer of the message: its length is hashed between the two.
	canonical := extended[start:]
	e.hash.Write(extended[:start])
	e.hash.Write(e.prefix[:binary.PutUvarint(e.prefix[:], uint64(len(canonical)))])
	e.hash.Write(canonical)
	e.hash.Sum(e.digest[:0])
	return true
}

func (e *encoder) formBody(body []byte) bool {
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return false
	}
	e.values(values)
	e.sum(kindForm, nil)
	return true
}

// multipartBody hashes the parts in their order, each with its header, and leaves the boundary out. A body with content
// before or after the parts is hashed as raw bytes.
func (e *encoder) multipartBody(boundary string, body []byte) bool {
	last := []byte("--" + boundary + "--")
	first, _, _ := bytes.Cut(body, []byte("\n"))
	if string(bytes.TrimRight(first, "\r")) != "--"+boundary || bytes.Count(body, last) != 1 ||
		!bytes.HasSuffix(bytes.TrimRight(body, "\r\n"), last) {
		return false
	}
	reader := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := reader.NextRawPart()
		if err == io.EOF {
			e.count(0) // no further part
			e.sum(kindMultipart, nil)
			return true
		}
		if err != nil || !e.part(part) {
			return false
		}
	}
}

func (e *encoder) part(part *multipart.Part) bool {
	content, err := io.ReadAll(part)
	if err != nil {
		return false
	}
	header := make(map[string][]string, len(part.Header))
	for name, values := range part.Header {
		header[textproto.CanonicalMIMEHeaderKey(name)] = values
	}
	e.count(1)
	e.values(header)
	e.message = appendField(e.message, content)
	return true
}

// parseMediaType splits a Content-Type into the type in lower case and its parameters. A value that cannot be parsed is
// returned as written.
func parseMediaType(contentType string) (kind string, params map[string]string) {
	if contentType == "application/json" {
		return contentType, nil
	}
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return contentType, nil
	}
	return kind, params
}

// withoutUTF8 removes the charset that is the default for JSON and forms.
func withoutUTF8(params map[string]string) map[string]string {
	if strings.EqualFold(params["charset"], "utf-8") {
		delete(params, "charset")
	}
	return params
}

func isJSON(kind string) bool {
	return kind == "application/json" || strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")
}

// call hashes the content of a call of [Guard.Do].
func (e *encoder) call(c *Call) {
	e.field(c.Operation)
	e.field(c.Method)
	e.sum(kindCall, c.Payload)
}

// fingerprints keys the digest for a scope and session, under each secret of the ring. It appends to dst.
func (e *encoder) fingerprints(
	dst []store.Fingerprint, keys []secretKey, scope, session string,
) []store.Fingerprint {
	for i := range keys {
		dst = append(dst, store.Fingerprint{Secret: keys[i].id, Rules: rules})
		f := &dst[len(dst)-1]
		e.message = append(e.message[:0], 'F')
		e.field(scope)
		e.message = append(e.message, e.digest[:]...)
		keys[i].sum(f.Sum[:], e.message)
		if session != "" {
			f.Session = sessionTag(&keys[i], scope, session)
		}
	}
	return dst
}

// sessionTag returns a tag that identifies a caller's session without revealing it.
func sessionTag(key *secretKey, scope, session string) (tag [16]byte) {
	message := appendField([]byte{'S'}, scope)
	message = appendField(message, session)
	var sum [sha256.Size]byte
	key.sum(sum[:], message)
	copy(tag[:], sum[:])
	return tag
}

// appendField adds a value after its length, so that two different lists of values never have the same encoding.
func appendField[T string | []byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// Payload hashes the arguments of a function for [Call].Payload: the parts and the boundaries between them count.
func Payload(parts ...[]byte) []byte {
	e := newEncoder()
	defer e.free()
	e.count(len(parts))
	for _, part := range parts {
		e.message = appendField(e.message, part)
	}
	e.sum(kindParts, nil)
	return bytes.Clone(e.digest[:])
}

// KeepTarget is a middleware that fills in [http.Request.RequestURI] before a router removes a prefix from the path,
// because the fingerprint contains the target as sent. Put it in front of everything else, and only where requests have
// no RequestURI: from net/http/cgi, net/http/fcgi, or an adapter that makes them by hand. The server of net/http and
// httptest.NewRequest set it, but not [http.NewRequest]. Without it the target is taken from [http.Request.URL], and
// after [http.StripPrefix] two routes with the same name look alike.
func KeepTarget(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.RequestURI == "" {
			kept := *r
			kept.RequestURI = r.URL.RequestURI()
			r = &kept
		}
		next.ServeHTTP(w, r)
	})
}

// target returns the path as the client sent it: a router may have removed a prefix from r.URL. The origin-form, which
// HTTP/2 also has, and the absolute-form that is sent to a proxy are the same target; an asterisk and an authority are
// kept as they are (RFC 9112, 3.2).
func target(r *http.Request) string {
	uri := r.RequestURI
	if uri == "" {
		uri = r.URL.RequestURI()
	}
	path, _, _ := strings.Cut(uri, "?")
	if strings.HasPrefix(path, "/") {
		return path
	}
	_, rest, absolute := strings.Cut(path, "://")
	if !absolute {
		return path
	}
	if slash := strings.IndexByte(rest, '/'); slash >= 0 {
		return rest[slash:]
	}
	return "/"
}
