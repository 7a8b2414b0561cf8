package payments

import (
	"errors"
	"net/http"

	"github.com/onceward/onceward/examples/provider"
)

// finalRefusal returns the reason if the provider has refused for good: to ask the same again would only be refused
// again. That is an answer of its own in the four hundreds, unless it speaks of the moment: too late, too early, too
// often, a call with the same key that is still under way, or credentials of ours that an operator has to renew.
//
// The reason holds for earlier calls with the same key as well, of which it is not known whether they came through: had
// one of them been made, the provider would have answered with it.
func finalRefusal(err error) (reason string, final bool) {
	var no *provider.RefusedError
	if !errors.As(err, &no) || no.Status/100 != 4 {
		return "", false
	}
	switch no.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return "", false
	default:
		return no.Error(), true
	}
}
