package payments

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/onceward/onceward"
)

// isOpen reports whether a path needs no token: the provider signs its webhooks, health and
// metrics are for internal machines, and the policy is also for readers who have no account yet.
func isOpen(path string) bool {
	account, ofAccount := strings.CutPrefix(path, "/events/")
	return path == "/events" || ofAccount && !strings.Contains(account, "/") ||
		path == "/health" || path == "/counters" || path == "/metrics" || path == policyPath
}

// challenge is the WWW-Authenticate header for requests without a valid token.
const challenge = `Bearer realm="payments"`

type accountKey struct{}

// authenticate rejects requests without a known token, and adds the account to the context.
func (s *System) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isOpen(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		account, known := s.accountOf(r.Header.Get("Authorization"))
		if !known {
			w.Header().Set("WWW-Authenticate", challenge)
			fail(w, http.StatusUnauthorized, "send Authorization: Bearer and a token that is known here")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accountKey{}, account)))
	})
}

// accountOf compares the token with all known tokens, by their hashes,
// so that the time it takes reveals nothing about any of them.
func (s *System) accountOf(header string) (account string, known bool) {
	scheme, sent, _ := strings.Cut(header, " ")
	bearer := strings.EqualFold(scheme, "Bearer")
	hash := sha256.Sum256([]byte(sent))
	for token, name := range s.config.Tokens {
		want := sha256.Sum256([]byte(token))
		if subtle.ConstantTimeCompare(hash[:], want[:]) == 1 && bearer {
			account, known = name, true
		}
	}
	return account, known
}

// account returns the scope of a request. The scope comes from
// authentication, and from nothing that the client can choose.
func (s *System) account(r *http.Request) (string, error) {
	account, ok := r.Context().Value(accountKey{}).(string)
	if !ok {
		return "", onceward.Unauthenticated(challenge)
	}
	return account, nil
}

// accountFrom returns the account for a handler. No request reaches a handler without an account.
func accountFrom(ctx context.Context) string {
	account, _ := ctx.Value(accountKey{}).(string)
	return account
}
