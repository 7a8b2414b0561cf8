package onceward

import (
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/onceward/onceward/store"
)

// headerRules sets which response headers of a route are stored, where this differs from rule A2.
type headerRules struct {
	store []string
	drop  []string
	// replayed is the name of the guard's header that marks a replay.
	replayed string
}

// StoreHeaders stores response headers that are by default not stored because each answer has its own value, such as a
// request id. Headers that must never be stored stay out. Default: none.
func StoreHeaders(names ...string) Option {
	return func(s *settings) error {
		s.headers.store = canonicalNames(names)
		return nil
	}
}

// DropHeaders sets response headers that are not stored: they are sent with the first answer only. Default: none.
func DropHeaders(names ...string) Option {
	return func(s *settings) error {
		s.headers.drop = canonicalNames(names)
		return nil
	}
}

// headerValues returns the non-empty values, with control characters replaced by spaces.
func headerValues(values []string) (clean []string) {
	for _, value := range values {
		value = strings.TrimSpace(strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return ' '
			}
			return r
		}, value))
		if value != "" {
			clean = append(clean, value)
		}
	}
	return clean
}

func canonicalNames(names []string) []string {
	canonical := make([]string, len(names))
	for i, name := range names {
		canonical[i] = http.CanonicalHeaderKey(name)
	}
	return canonical
}

// expiresHeader contains the time until which a retry gets the same answer.
const expiresHeader = "Idempotency-Key-Expires"

// outcomeHeader marks an answer of the handler that is not kept because nothing was done.
const outcomeHeader = "Idempotency-Outcome"

// neverStored lists the headers that belong to one connection or one caller.
var neverStored = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true,
	"Set-Cookie": true, "Set-Cookie2": true, "Www-Authenticate": true, "Authentication-Info": true,
	"Proxy-Authenticate": true, "Proxy-Authentication-Info": true,
}

// isGuardHeader reports whether a header is reserved for Onceward. A handler must not set it, or pass it on from
// another service: the client would interpret it as a statement of this guard.
func (h *headerRules) isGuardHeader(name string) bool {
	return name == expiresHeader || name == outcomeHeader || name == defaultReplayedHeader || name == h.replayed
}

// perTransmission lists the headers that describe one transmission.
var perTransmission = map[string]bool{
	"Date": true, "Content-Length": true, "Age": true, "Server-Timing": true, "Server": true,
	"X-Request-Id": true, "Request-Id": true, "X-Correlation-Id": true, "X-Trace-Id": true, "Traceparent": true,
	"Tracestate": true, "Traceresponse": true, "X-Amzn-Trace-Id": true, "X-Cloud-Trace-Context": true,
}

// perConnection lists the headers whose removal is not stored either: they depend on the connection.
var perConnection = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true, "Trailer": true, "Upgrade": true,
	"Content-Length": true,
}

var perTransmissionPrefixes = []string{"Ratelimit-", "X-Ratelimit-", "Access-Control-", "X-B3-"}

// keeps reports whether a response header is stored.
func (h *headerRules) keeps(name string) bool {
	switch {
	case neverStored[name] || h.isGuardHeader(name):
		return false
	case strings.HasPrefix(name, http.TrailerPrefix) || slices.Contains(h.drop, name):
		return false
	case slices.Contains(h.store, name):
		return true
	case perTransmission[name] || name == "Ratelimit":
		return false
	}
	for _, prefix := range perTransmissionPrefixes {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return true
}

// keepsRemoval reports whether the removal of a header by the handler is stored. A removal contains nothing about a
// caller or a transmission, so it is stored for more headers than a value is.
func (h *headerRules) keepsRemoval(name string) bool {
	return !perConnection[name] && !slices.Contains(h.drop, name)
}

// fields returns the handler's changes to the header, compared with the header before the handler ran: the fields to
// store first, in a stable order, then the fields that are sent with this answer only, without the guard's own fields.
// Trailers follow the body, and are not included. Transfer-Encoding is not included either: the server decides how an
// answer is framed, so that the first answer and its replays are framed alike.
func (h *headerRules) fields(before, after http.Header) (all []store.HeaderField, stored int) {
	n := len(before)
	for _, values := range after {
		n += max(len(values), 1)
	}
	all = make([]store.HeaderField, 0, n)
	connection := after["Connection"]
	for name, values := range after {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if h.keeps(name) && !listed(connection, name) {
			all = appendFields(all, name, values, before[name])
		}
	}
	all = h.appendRemovals(all, before, after, true)
	stored = len(all)
	slices.SortStableFunc(all, func(a, b store.HeaderField) int { return strings.Compare(a.Name, b.Name) })
	for name, values := range after {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if strings.HasPrefix(name, http.TrailerPrefix) || canonical == "Transfer-Encoding" || h.isGuardHeader(canonical) {
			continue
		}
		if !h.keeps(canonical) || listed(connection, canonical) {
			all = appendFields(all, name, values, before[name])
		}
	}
	return h.appendRemovals(all, before, after, false), stored
}

// appendRemovals adds the headers that a handler deleted, and the headers that it set to nil, which keeps net/http from
// adding its own values. It adds either the removals to store, or the removals for this answer only.
func (h *headerRules) appendRemovals(
	all []store.HeaderField, before, after http.Header, stored bool,
) []store.HeaderField {
	for name := range before {
		if _, there := after[name]; !there && h.keepsRemoval(name) == stored {
			all = append(all, store.HeaderField{Name: name, Removed: true})
		}
	}
	for name, values := range after {
		if old, there := before[name]; there && len(old) == 0 {
			continue // it was nil before the handler ran
		}
		if len(values) == 0 && h.keepsRemoval(textproto.CanonicalMIMEHeaderKey(name)) == stored {
			all = append(all, store.HeaderField{Name: name, Removed: true})
		}
	}
	return all
}

// appendFields adds the values that a handler set, or appended to existing values.
func appendFields(all []store.HeaderField, name string, values, before []string) []store.HeaderField {
	added := len(before) > 0 && len(values) >= len(before) && slices.Equal(values[:len(before)], before)
	if added {
		values = values[len(before):]
	}
	for _, value := range values {
		all = append(all, store.HeaderField{Name: name, Value: value, Append: added})
	}
	return all
}

// listed reports whether a Connection header lists a header as specific to the connection.
func listed(connection []string, name string) bool {
	for _, line := range connection {
		for token := range strings.SplitSeq(line, ",") {
			if textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(token)) == name {
				return true
			}
		}
	}
	return false
}

// sendFields writes fields into the real header, which is about to be sent, and returns room for extra values. A few
// values are kept in the recorder, more values in one allocation: a recorder sends once.
func (rec *recorder) sendFields(fields []store.HeaderField, extra int) (room []string) {
	h, values := rec.real.Header(), rec.sent[:0]
	if len(fields)+extra > cap(values) {
		values = make([]string, 0, len(fields)+extra)
	}
	for i := range fields {
		f := &fields[i]
		if f.Removed {
			remove(h, f.Name)
			continue
		}
		continued := i > 0 && fields[i-1].Name == f.Name
		if f.Append || continued {
			h[f.Name] = append(h[f.Name], f.Value)
			continue
		}
		values = append(values, f.Value)
		h[f.Name] = values[len(values)-1 : len(values) : len(values)]
	}
	return values
}

// remove deletes a field from a header, or keeps the server from adding it if it is absent.
func remove(h http.Header, name string) {
	if _, there := h[name]; there {
		delete(h, name)
	} else {
		h[name] = nil
	}
}

// trailers returns the fields that a handler sends after the body, in the two ways of net/http: under names that it
// announced in the header Trailer, and under names with the prefix [http.TrailerPrefix]. They are sent with the first
// answer and not stored (rule A9).
func trailers(h http.Header, announced []string) (found http.Header) {
	add := func(name string, values []string) {
		if found == nil {
			found = make(http.Header)
		}
		found[name] = values
	}
	for name, values := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			add(name, values)
		}
	}
	for _, line := range announced {
		for name := range strings.SplitSeq(line, ",") {
			name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name))
			if values := h[name]; len(values) > 0 {
				add(name, values)
			}
		}
	}
	return found
}

// sendTrailers ends an answer whose body was sent. The header must be sent first: if an answer is complete when its
// header is written, net/http sends it with a length, and without trailers unless they were announced.
func sendTrailers(w http.ResponseWriter, trailers http.Header) {
	if len(trailers) == 0 {
		return
	}
	_ = http.NewResponseController(w).Flush() // a writer that cannot flush sends the announced trailers
	maps.Copy(w.Header(), trailers)
}
