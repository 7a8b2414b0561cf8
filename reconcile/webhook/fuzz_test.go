package webhook_test

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// FuzzVerify: no header and no body makes a scheme panic, what Sign makes is accepted, and nothing else is.
func FuzzVerify(f *testing.F) {
	f.Add("t=1767225600,v1="+stampedHex, "1767225600", "msg_1", []byte(body), uint16(0))
	f.Add("t=1767225600,t=1,v1="+stampedHex+",v0=x", "", "", []byte{}, uint16(9))
	f.Add("v1,"+standardOtherB64+" v1a,x", "1767225600", "msg_1", []byte(body), uint16(100))
	f.Add("sha256="+plainHex, "-1", "msg.1", []byte(body), uint16(3))
	f.Add(stampedBase64, "1767225600", "\x00", []byte(body), uint16(7))
	f.Add(strings.Repeat("v1=,", 2000), "99999999999999999999", ".", []byte("\xff"), uint16(1))
	f.Fuzz(func(t *testing.T, signature, timestamp, id string, body []byte, flip uint16) {
		for _, s := range schemes(secretText) {
			made := http.Header{}
			s.sign(made, body, now)
			if err := s.scheme.Verify(made, body, now); err != nil {
				t.Fatalf("%s: what Sign made is refused: %v", s.name, err)
			}
			if forged := flipBit(body, flip); s.scheme.Verify(made, forged, now) == nil {
				t.Fatalf("%s: %q was accepted with the signature of %q", s.name, forged, body)
			}
			sent := http.Header{}
			for _, name := range []string{"Provider-Signature", "X-Signature", "Webhook-Signature"} {
				sent.Set(name, signature)
			}
			sent.Set("X-Timestamp", timestamp)
			sent.Set("Webhook-Timestamp", timestamp)
			sent.Set("Webhook-Id", id)
			if s.scheme.Verify(sent, body, now) == nil && !couldBeSigned(s, sent, body) {
				t.Fatalf("%s: %q was accepted for %q", s.name, sent, body)
			}
		}
	})
}

// flipBit changes one bit, or adds a byte to nothing.
func flipBit(body []byte, bit uint16) []byte {
	if len(body) == 0 {
		return []byte{byte(bit)}
	}
	flipped := bytes.Clone(body)
	flipped[int(bit)/8%len(flipped)] ^= 1 << (bit % 8)
	return flipped
}

// couldBeSigned tries all times within the tolerance: a header that was accepted holds a signature that Sign makes.
// Only the case of hex digits is free.
func couldBeSigned(s signing, sent http.Header, body []byte) bool {
	for skew := -5 * time.Minute; skew <= 5*time.Minute; skew += time.Second {
		made := http.Header{}
		s.sign(made, body, now.Add(skew))
		parts := strings.Split(made.Get(s.signatureHeader()), ",")
		signature, value := parts[len(parts)-1], sent.Get(s.signatureHeader())
		// Hex is made in lower case, so that base64 gains nothing from the second look.
		if strings.Contains(value, signature) || strings.Contains(strings.ToLower(value), signature) {
			return true
		}
	}
	return false
}

func (s signing) signatureHeader() string {
	return s.headers[slices.IndexFunc(s.headers, func(name string) bool { return strings.HasSuffix(name, "Signature") })]
}
