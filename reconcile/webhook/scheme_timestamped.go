package webhook

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// TimestampedConfig configures a [Timestamped] scheme.
type TimestampedConfig struct {
	// Header is the name of the header with the signature, such as "Stripe-Signature". Required.
	Header string
	// Secrets are the secrets that the sender may have signed with, each of at least 16 bytes. One is enough; during a
	// rotation there are two. Required.
	Secrets [][]byte
	// Tolerance is how far the timestamp may be from now, in both directions. Default: [DefaultTolerance].
	Tolerance time.Duration
}

// Timestamped is the scheme of many payment providers: one header with `t=<unix seconds>,v1=<hex>`, where v1 is the
// HMAC-SHA256 of the timestamp, a full stop and the raw body.
//
// It fails closed. A delivery is refused if the header is missing, is present twice or is longer than 4096 bytes; if
// there is not exactly one t, or it is anything but digits; and if no v1 matches. Other keys are ignored, including v0:
// an older and weaker signature does not replace v1.
type Timestamped struct {
	header string
	verifier
}

// NewTimestamped returns the scheme, or an error if the configuration could not keep a forger out.
func NewTimestamped(config TimestampedConfig) (*Timestamped, error) {
	if config.Header == "" {
		return nil, errors.New("webhook: TimestampedConfig.Header is missing")
	}
	v, err := newVerifier(config.Secrets, config.Tolerance)
	if err != nil {
		return nil, err
	}
	return &Timestamped{header: config.Header, verifier: v}, nil
}

// Verify implements [Scheme]. Any of several v1 signatures and any of the secrets may match, so that both sides can
// rotate.
func (s *Timestamped) Verify(header http.Header, body []byte, now time.Time) error {
	value, err := single(header, s.header)
	if err != nil {
		return err
	}
	timestamp, signatures, err := parseTimestamped(value)
	if err != nil {
		return err
	}
	return s.verify(signatures, timestamp, now, timestamp, string(body))
}

// Sign sets the header as the sender does, with one v1 for each secret. It is for senders and tests.
func (s *Timestamped) Sign(header http.Header, body []byte, at time.Time) {
	timestamp := formatTimestamp(at)
	items := []string{"t=" + timestamp}
	for _, sign := range s.keys {
		items = append(items, "v1="+hex.EncodeToString(sign(timestamp, string(body))))
	}
	header.Set(s.header, strings.Join(items, ","))
}

// parseTimestamped parses the header. A v1 that is no hex is left out, because it can match nothing.
func parseTimestamped(value string) (timestamp string, signatures [][]byte, err error) {
	timestamps := 0
	for item := range strings.SplitSeq(value, ",") {
		key, text, _ := strings.Cut(strings.TrimSpace(item), "=")
		switch key {
		case "t":
			timestamp = text
			timestamps++
		case "v1":
			if signature, err := hex.DecodeString(text); err == nil {
				signatures = append(signatures, signature)
			}
		}
	}
	if timestamps != 1 {
		return "", nil, fmt.Errorf("%w: there must be one timestamp, and there are %d", ErrSignature, timestamps)
	}
	return timestamp, signatures, nil
}
