package webhook

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// These are the headers of Standard Webhooks. The signature covers the id, so that [Event.ID] may be taken from it.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

// standardSecretPrefix marks the secrets of the scheme, so that no other secret is used by mistake.
const standardSecretPrefix = "whsec_"

// StandardWebhooksConfig configures a [StandardWebhooks] scheme.
type StandardWebhooksConfig struct {
	// Secrets are the secrets that the sender may have signed with, in the sender's notation: `whsec_` and base64, at
	// least 16 bytes when decoded. One is enough; during a rotation there are two. Required.
	Secrets []string
	// Tolerance is how far the timestamp may be from now, in both directions. Default: [DefaultTolerance].
	Tolerance time.Duration
}

// StandardWebhooks is the symmetric scheme of the Standard Webhooks specification: the header webhook-signature is a
// list, separated by spaces, of `v1,<base64>`, where the signature is the HMAC-SHA256 of webhook-id, webhook-timestamp
// and the raw body, joined by full stops.
//
// It fails closed. A delivery is refused if one of the three headers is missing, is present twice or is longer than 4096
// bytes; if the timestamp is anything but digits; if the id contains a full stop, because a part of it could then
// be passed off as the timestamp; and if no v1 matches. Other versions are ignored: v1a is asymmetric and not known here.
type StandardWebhooks struct{ verifier }

// NewStandardWebhooks returns the scheme, or an error if the configuration could not keep a forger out.
func NewStandardWebhooks(config StandardWebhooksConfig) (*StandardWebhooks, error) {
	secrets := make([][]byte, len(config.Secrets))
	for i, text := range config.Secrets {
		encoded, ok := strings.CutPrefix(text, standardSecretPrefix)
		secret, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil {
			// The cause is left out, because it may quote a part of the secret.
			return nil, fmt.Errorf("webhook: secret %d of %d is not %s followed by base64",
				i+1, len(config.Secrets), standardSecretPrefix)
		}
		secrets[i] = secret
	}
	v, err := newVerifier(secrets, config.Tolerance)
	if err != nil {
		return nil, err
	}
	return &StandardWebhooks{v}, nil
}

// Verify implements [Scheme]. Any of several v1 signatures and any of the secrets may match, so that both sides can
// rotate.
func (s *StandardWebhooks) Verify(header http.Header, body []byte, now time.Time) error {
	id, err := single(header, HeaderID)
	if err != nil {
		return err
	}
	if err := checkID(id); err != nil {
		return fmt.Errorf("%w: %w", ErrSignature, err)
	}
	timestamp, err := single(header, HeaderTimestamp)
	if err != nil {
		return err
	}
	value, err := single(header, HeaderSignature)
	if err != nil {
		return err
	}
	return s.verify(parseStandard(value), timestamp, now, id, timestamp, string(body))
}

// Sign sets the three headers as the sender does, with one v1 for each secret. It is for senders and tests. The id
// stays the same when an event is sent again; an id that is empty or contains a full stop is an error.
func (s *StandardWebhooks) Sign(header http.Header, id string, body []byte, at time.Time) error {
	if err := checkID(id); err != nil {
		return err
	}
	timestamp := formatTimestamp(at)
	var items []string
	for _, sign := range s.keys {
		items = append(items, "v1,"+base64.StdEncoding.EncodeToString(sign(id, timestamp, string(body))))
	}
	header.Set(HeaderID, id)
	header.Set(HeaderTimestamp, timestamp)
	header.Set(HeaderSignature, strings.Join(items, " "))
	return nil
}

func checkID(id string) error {
	if id == "" || strings.Contains(id, ".") {
		return fmt.Errorf("webhook: the %s is empty or contains a full stop", HeaderID)
	}
	return nil
}

// parseStandard parses the list of signatures. A v1 that is no base64 is left out, because it can match nothing.
func parseStandard(value string) (signatures [][]byte) {
	for item := range strings.FieldsSeq(value) {
		text, ok := strings.CutPrefix(item, "v1,")
		if !ok {
			continue
		}
		if signature, err := base64.StdEncoding.Strict().DecodeString(text); err == nil {
			signatures = append(signatures, signature)
		}
	}
	return signatures
}
