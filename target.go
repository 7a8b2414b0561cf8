package onceward

import (
	"net/http"
	"strings"
)

// KeepTarget keeps where a request was sent for the fingerprint, before a router takes a prefix off its path. It
// belongs in front of everything else, and only where requests come without [http.Request.RequestURI]: from
// net/http/cgi, net/http/fcgi, or an adapter that makes them by hand. The server of net/http sets it, and so does
// httptest.NewRequest, but not [http.NewRequest], which is for clients. Without it a protected request is refused,
// because behind [http.StripPrefix] two routes would look like one.
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

// target is the path as the client sent it: a router may have taken a prefix off r.URL. The origin-form, which HTTP/2
// has too, and the absolute-form that is sent to a proxy are the same target; an asterisk and an authority stand for
// themselves (RFC 9112, 3.2).
func target(r *http.Request) string {
	path, _, _ := strings.Cut(r.RequestURI, "?")
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
