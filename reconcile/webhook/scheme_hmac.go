package webhook

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Encoding is the encoding of a signature in a header.
type Encoding int

const (
	// EncodingHex is two digits for each byte. Both cases are accepted, and lower case is written.
	EncodingHex Encoding = iota
	// EncodingBase64 is the standard alphabet, padded.
	EncodingBase64
)

// encode encodes a signature.
func (e Encoding) encode(signature []byte) string {
	if e == EncodingBase64 {
		return base64.StdEncoding.EncodeToString(signature)
	}
	return hex.EncodeToString(signature)
}

// decode decodes a signature. Base64 is strict, so that a signature has only one encoding.
func (e Encoding) decode(text string) ([]byte, error) {
	if e == EncodingBase64 {
		return base64.StdEncoding.Strict().DecodeString(text)
	}
	return hex.DecodeString(text)
}

// HMACConfig configures an [HMAC] scheme.
type HMACConfig struct {
	// Header is the name of the header with the signature, such as "X-Hub-Signature-256". Required.
	Header string
	// Secrets are the secrets that the sender may have signed with, each of at least 16 bytes. One is enough; during a
	// rotation there are two. Required.
	Secrets [][]byte
	// Encoding is the encoding of the signature. Default: [EncodingHex].
	Encoding Encoding
	// Prefix comes before the signature in the header, such as "sha256=". A header without it is refused. Default:
	// none.
	Prefix string
	// TimestampHeader is the name of a header with unix seconds. If it is set, the signed text is the timestamp, a full
	// stop and the raw body. If it is not, the signed text is the raw body alone, and the scheme cannot refuse a replay by
	// its age: anyone who has seen a delivery can send it again at any time. Such a replay is harmless while the external
	// event with its id, taken from the signed body, is still kept; once it has been purged the replay is taken for new.
	// Default: none.
	TimestampHeader string
	// Tolerance is how far the timestamp may be from now, in both directions. It has no effect without a TimestampHeader.
	// Default: [DefaultTolerance].
	Tolerance time.Duration
}

// HMAC is the generic scheme: one header with the HMAC-SHA256 of the raw body, after a timestamp if the sender sends
// one.
//
// It fails closed. A delivery is refused if a header is missing, is present twice or is longer than 4096 bytes; if the
// prefix or the encoding is another one; if the timestamp is anything but digits; and if the signature does not match.
// See [HMACConfig] for its limits without a timestamp.
type HMAC struct {
	config HMACConfig
	verifier
}

// NewHMAC returns the scheme, or an error if the configuration could not keep a forger out.
func NewHMAC(config HMACConfig) (*HMAC, error) {
	if config.Header == "" {
		return nil, errors.New("webhook: HMACConfig.Header is missing")
	}
	if config.Encoding != EncodingHex && config.Encoding != EncodingBase64 {
		return nil, fmt.Errorf("webhook: there is no encoding %d", config.Encoding)
	}
	v, err := newVerifier(config.Secrets, config.Tolerance)
	if err != nil {
		return nil, err
	}
	// The keyring has its own copies; the caller's secrets are not kept.
	config.Secrets = nil
	return &HMAC{config: config, verifier: v}, nil
}

// Verify implements [Scheme]. Any of the secrets may match, so that they can be rotated.
func (s *HMAC) Verify(header http.Header, body []byte, now time.Time) error {
	signature, err := s.signature(header)
	if err != nil {
		return err
	}
	if s.config.TimestampHeader == "" {
		return s.keys.confirm([][]byte{signature}, string(body))
	}
	timestamp, err := single(header, s.config.TimestampHeader)
	if err != nil {
		return err
	}
	return s.verify([][]byte{signature}, timestamp, now, timestamp, string(body))
}

// signature returns the signature in the header.
func (s *HMAC) signature(header http.Header) ([]byte, error) {
	value, err := single(header, s.config.Header)
	if err != nil {
		return nil, err
	}
	text, ok := strings.CutPrefix(value, s.config.Prefix)
	if !ok {
		return nil, fmt.Errorf("%w: the %s header does not begin with %q", ErrSignature, s.config.Header, s.config.Prefix)
	}
	signature, err := s.config.Encoding.decode(text)
	if err != nil {
		return nil, fmt.Errorf("%w: the %s header is in another encoding", ErrSignature, s.config.Header)
	}
	return signature, nil
}

// Sign sets the headers as the sender does, with the first of the secrets. It is for senders and tests.
func (s *HMAC) Sign(header http.Header, body []byte, at time.Time) {
	parts := []string{string(body)}
	if s.config.TimestampHeader != "" {
		timestamp := formatTimestamp(at)
		header.Set(s.config.TimestampHeader, timestamp)
		parts = []string{timestamp, string(body)}
	}
	header.Set(s.config.Header, s.config.Prefix+s.config.Encoding.encode(s.keys[0](parts...)))
}
