package payments

import (
	"errors"
	"net/http"

	"github.com/onceward/onceward/examples/provider"
)

// finalRefusal returns the reason if the provider has permanently refused a request: the same request would only be
// refused again. Such a refusal has a status in the four hundreds. Statuses about the moment do not count: too late,
// too early, too often, a call with the same key that is still in progress, or credentials that an operator must renew.
//
// The reason also covers earlier calls with the same key whose outcome is not
// known: if one of them had succeeded, the provider would have returned its result.
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
