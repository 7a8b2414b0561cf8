package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Scheme verifies that deliveries are the sender's. [Timestamped], [StandardWebhooks] and [HMAC] are here; a provider
// that signs in another way needs only a type with this one method. It is used by many requests at a time.
type Scheme interface {
	// Verify returns nil only if the sender signed exactly these bytes and, if the scheme has a timestamp, did so within
	// the tolerance around now. Otherwise the error wraps [ErrSignature] or [ErrStale]. The error is only logged, so it
	// may describe what is wrong, but must never contain a secret or the expected signature.
	Verify(header http.Header, body []byte, now time.Time) error
}

var (
	// ErrSignature is returned when the signature of a delivery is missing, malformed or not the sender's.
	ErrSignature = errors.New("webhook: the signature is missing or wrong")
	// ErrStale is returned when the sender did sign a delivery, but too long ago or too far in the future: it may be a
	// recording that another party sends again.
	ErrStale = errors.New("webhook: the delivery is outside of the time window")
)

// DefaultTolerance is how far the timestamp of a delivery may be from the receiver's clock, in both directions.
const DefaultTolerance = 5 * time.Minute

const (
	// minSecretLength is the shortest secret that keeps a signature from being guessed.
	minSecretLength = 16
	// maxHeaderLength is far more than the signatures of a rotation need. It bounds the work that a forger can cause.
	maxHeaderLength = 4096
	// timestampBits has room for seconds until long after the year 30000, and none for milliseconds or for an overflow.
	timestampBits = 40
)

// keyring signs with each of the secrets in turn. It holds functions instead of secrets, so that printing a scheme by
// mistake reveals nothing.
type keyring []func(parts ...string) []byte

// newKeyring copies the secrets, because the caller may wipe them.
func newKeyring(secrets [][]byte) (keyring, error) {
	if len(secrets) == 0 {
		return nil, errors.New("webhook: there is no secret: nothing could be verified")
	}
	var keys keyring
	for i, secret := range secrets {
		if len(secret) < minSecretLength {
			return nil, fmt.Errorf("webhook: secret %d of %d is too short: it has %d bytes and needs %d random bytes at least",
				i+1, len(secrets), len(secret), minSecretLength)
		}
		kept := append([]byte(nil), secret...)
		keys = append(keys, func(parts ...string) []byte {
			mac := hmac.New(sha256.New, kept)
			mac.Write([]byte(strings.Join(parts, ".")))
			return mac.Sum(nil)
		})
	}
	return keys, nil
}

// confirm checks that one of the signatures was made with one of the secrets. It compares all with all: the duration
// does not reveal which of them were close.
func (k keyring) confirm(signatures [][]byte, parts ...string) error {
	matches := 0
	for _, sign := range k {
		want := sign(parts...)
		for _, signature := range signatures {
			if hmac.Equal(signature, want) {
				matches++
			}
		}
	}
	if matches == 0 {
		return fmt.Errorf("%w: none of %d signatures is of one of %d secrets", ErrSignature, len(signatures), len(k))
	}
	return nil
}

// verifier is shared by the schemes: secrets, and how far the time of a delivery may be from now.
type verifier struct {
	keys      keyring
	tolerance time.Duration
}

func newVerifier(secrets [][]byte, tolerance time.Duration) (verifier, error) {
	if tolerance < 0 {
		return verifier{}, fmt.Errorf("webhook: the tolerance %s must not be negative", tolerance)
	}
	if tolerance == 0 {
		tolerance = DefaultTolerance
	}
	keys, err := newKeyring(secrets)
	return verifier{keys: keys, tolerance: tolerance}, err
}

// verify checks that one of the signatures is over the parts, of which the timestamp is one, and refuses deliveries
// signed too far from now. The time is checked after the signature, so that [ErrStale] always concerns the sender, and
// never a forger who made up a time.
func (v *verifier) verify(signatures [][]byte, timestamp string, now time.Time, parts ...string) error {
	signed, err := parseTimestamp(timestamp)
	if err != nil {
		return err
	}
	if err := v.keys.confirm(signatures, parts...); err != nil {
		return err
	}
	if age := now.Sub(signed); age.Abs() > v.tolerance {
		return fmt.Errorf("%w: it was signed %s before now, and the tolerance is %s", ErrStale, age, v.tolerance)
	}
	return nil
}

// parseTimestamp parses seconds since 1970. It accepts digits only: no sign, no fraction and above all no full stop,
// which separates the timestamp from the rest of the signed text.
func parseTimestamp(text string) (time.Time, error) {
	seconds, err := strconv.ParseUint(text, 10, timestampBits)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: the timestamp is no number of seconds", ErrSignature)
	}
	return time.Unix(int64(seconds), 0), nil
}

func formatTimestamp(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }

// single returns the one value of a header. Two values are refused, because another reader might use the other one.
func single(header http.Header, name string) (string, error) {
	values := header.Values(name)
	switch {
	case len(values) != 1 || values[0] == "":
		return "", fmt.Errorf("%w: there must be one %s header, and there are %d", ErrSignature, name, len(values))
	case len(values[0]) > maxHeaderLength:
		return "", fmt.Errorf("%w: the %s header is longer than %d bytes", ErrSignature, name, maxHeaderLength)
	}
	return values[0], nil
}
