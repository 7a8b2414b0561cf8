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
	// URL is where the event was sent: the scheme and the host only, since all else may hold a secret.
	URL string
	// Status is that of the answer.
	Status int
	// Body is the beginning of the answer, at most 200 bytes.
	Body string
}

// Error says what was answered.
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

// PermanentStatus reports whether a status says that the event would be refused each time: 400, 413, 415, 422 and 431,
// by which a receiver refuses what is in it, and 410, by which it says that it has gone for good.
//
// Others that are usually counted among the permanent ones are not, because what they complain of is repaired on the
// receiver's side or in the configuration: 401 and 403 (credentials), 404, 405 and 501 (the URL or what is behind it)
// and redirects. They are retried until the route's attempts are used up, and a dead letter can be replayed.
func PermanentStatus(status int) bool { return slices.Contains(permanent, status) }

// judge makes an answer into the result of the delivery.
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

// retryAfter reads how long to wait: seconds, or a date. It returns nothing if the header says nothing of sense.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return at.Sub(now)
	}
	return 0
}
