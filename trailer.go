package onceward

import (
	"maps"
	"net/http"
	"net/textproto"
	"strings"
)

// trailers are what a handler wants sent behind the body, in the two ways of net/http: by names that it announced in
// the header Trailer, and by names behind [http.TrailerPrefix]. They are sent with the first answer and not stored
// (A9).
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

// sendTrailers ends an answer whose body was sent. The header has to be on its way first: for net/http an answer that
// is complete when its header is written has a length, or has ended, and no trailers then, unless they were
// announced.
func sendTrailers(w http.ResponseWriter, trailers http.Header) {
	if len(trailers) == 0 {
		return
	}
	_ = http.NewResponseController(w).Flush() // a writer that cannot flush sends what was announced
	maps.Copy(w.Header(), trailers)
}
