package httppub

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/onceward/onceward/outbox"
)

// StatusError is an answer that does not confirm the event.
type StatusError struct {
	// URL is the receiver's URL, with only the scheme and the host, because everything else may contain a secret.
	URL string
	// Status is the status of the answer.
	Status int
	// Body is the beginning of the answer, at most 200 bytes.
	Body string
}

// Error returns a text with the answer.
func (e *StatusError) Error() string {
	return fmt.Sprintf("httppub: %s answered %d %s: %q", e.URL, e.Status, http.StatusText(e.Status), e.Body)
}

// permanent are the statuses of [PermanentStatus].
var permanent = []int{
	http.StatusBadRequest,
	http.StatusGone,
	http.StatusRequestEntityTooLarge,
	http.StatusUnsupportedMediaType,
	http.StatusUnprocessableEntity,
	http.StatusRequestHeaderFieldsTooLarge,
}

// PermanentStatus reports whether a status means that the event would be refused each time: 400, 413, 415, 422
// and 431, by which a receiver refuses the content, and 410, which means that the receiver no longer exists.
//
// Other statuses that often count as permanent do not count here, because the receiver or the configuration
// can be repaired: 401 and 403 (credentials), 404, 405 and 501 (the URL or the server behind it) and
// redirects. They are retried until the route's attempts are used up, and a dead letter can be replayed.
func PermanentStatus(status int) bool { return slices.Contains(permanent, status) }

// judge returns the result of the delivery for an answer: nil if the answer confirms the event, or an error.
func (p *Publisher) judge(target *url.URL, response *http.Response, body []byte) error {
	status := response.StatusCode
	if status >= 200 && status < 300 {
		return nil
	}
	err := &StatusError{URL: shown(target), Status: status, Body: string(body)}
	if p.config.Permanent(status) {
		return outbox.Permanent(err)
	}
	if wait := retryAfter(response.Header.Get("Retry-After"), p.config.Now()); wait > 0 {
		return outbox.RetryAfter(err, min(wait, p.config.MaxRetryAfter))
	}
	return err
}

// retryAfter returns how long to wait: the header is a number of
// seconds or a date. It returns zero if the header is invalid.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return at.Sub(now)
	}
	return 0
}
