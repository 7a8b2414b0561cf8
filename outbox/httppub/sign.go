package httppub

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/onceward/onceward/outbox"
)

const (
	// secretPrefix marks the secrets of Standard Webhooks, so that they are not mistaken for something else.
	secretPrefix = "whsec_"
	// minSecret is the smallest size of a secret in bytes, by Standard Webhooks.
	minSecret = 24
)

// signing adds the proof of the sender to the header of a request.
type signing func(header http.Header, e *outbox.Event, now time.Time) error

// newSigning returns the signing for the configuration.
func newSigning(config Config) (signing, error) {
	if config.Unsigned {
		return func(http.Header, *outbox.Event, time.Time) error { return nil }, nil
	}
	if config.SecretsFor != nil {
		return func(header http.Header, e *outbox.Event, now time.Time) error {
			texts, err := config.SecretsFor(e)
			if err != nil {
				return fmt.Errorf("httppub: no secret for event %s: %w", e.ID, err)
			}
			secrets, err := decodeSecrets(texts)
			if err != nil {
				return err
			}
			setSignature(header, secrets, e, now)
			return nil
		}, nil
	}
	secrets, err := decodeSecrets(config.Secrets)
	if err != nil {
		return nil, err
	}
	return func(header http.Header, e *outbox.Event, now time.Time) error {
		setSignature(header, secrets, e, now)
		return nil
	}, nil
}

// decodeSecrets decodes secrets. Its errors leave out their causes, because a cause may quote a part of a secret.
func decodeSecrets(texts []string) ([][]byte, error) {
	if len(texts) == 0 {
		return nil, errors.New("httppub: there is no secret to sign with")
	}
	secrets := make([][]byte, len(texts))
	for i, text := range texts {
		secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, secretPrefix))
		if err != nil {
			return nil, fmt.Errorf("httppub: secret %d of %d is not base64", i+1, len(texts))
		}
		if len(secret) < minSecret {
			return nil, fmt.Errorf("httppub: secret %d of %d has %d bytes, and %d are needed", i+1, len(texts), len(secret),
				minSecret)
		}
		secrets[i] = secret
	}
	return secrets, nil
}

// setSignature signs by Standard Webhooks: with one signature for each secret, over the ID, the time and the body.
func setSignature(header http.Header, secrets [][]byte, e *outbox.Event, now time.Time) {
	timestamp := strconv.FormatInt(now.Unix(), 10)
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(e.ID + "." + timestamp + "."))
		mac.Write(e.Data)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	header.Set("Webhook-Id", e.ID)
	header.Set("Webhook-Timestamp", timestamp)
	header.Set("Webhook-Signature", strings.Join(signatures, " "))
}
