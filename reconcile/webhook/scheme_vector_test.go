package webhook_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/reconcile/webhook"
)

// The signatures of the body, made with `openssl dgst -sha256 -hmac <secret>`.
const (
	stampedHex       = "edef4e7782fd94c894fa29937b90e733d2db87a5e66aabbfe2f090f42f33f3c8" // of 1767225600.body
	stampedBase64    = "7e9Od4L9lMiU+imTe5DnM9Lbh6Xmaqu/4vCQ9C8z88g="
	stampedOtherHex  = "001b556ba12d1c9509b355fcdb763dac8fb2c74055d5440172eb715df36ae57d"
	plainHex         = "c83180259977258baf5b09954f7db027ecaf1744d0521c4a93db4ab08e08b937" // of the body alone
	plainBase64      = "yDGAJZl3JYuvWwmVT32wJ+yvF0TQUhxKk9tKsI4IuTc="
	standardOtherB64 = "FFCXXwB2TkYIQ9KdeIGWEGZpRbkofkSb7dS2Qfs2h34=" // of msg_1.1767225600.body
)

func TestTimestampedVectors(t *testing.T) {
	t.Parallel()
	for value, good := range map[string]bool{
		"t=1767225600,v1=" + stampedHex:                            true,
		"v1=" + stampedHex + ",t=1767225600":                       true,
		"t=1767225600, v1=" + strings.ToUpper(stampedHex):          true,
		"t=1767225600,v1=" + stampedOtherHex + ",v1=" + stampedHex: true,
		"t=1767225600,v1=nothex,v1=" + stampedHex + ",v0=old,x,=,": true,
		"t=1767225600,v1=" + stampedOtherHex:                       false,
		"t=1767225600,v0=" + stampedHex:                            false,
		"t=1767225600,v1=" + stampedBase64:                         false,
		"t=1767225600,v1=" + plainHex:                              false,
		"t=1767225600,v1=" + stampedHex[:62]:                       false,
		"t=1767225600,v1=" + stampedHex + "00":                     false,
		"t=1767225600,v1=":                                         false,
		"t=1767225600":                                             false,
		"v1=" + stampedHex:                                         false,
		"t=1767225600,t=1767225600,v1=" + stampedHex:               false,
		"t=1767225599,t=1767225600,v1=" + stampedHex:               false,
		"t=+1767225600,v1=" + stampedHex:                           false,
		"t=01767225600,v1=" + stampedHex:                           false,
		"t=-1,v1=" + stampedHex:                                    false,
		"t=18446744075476777216,v1=" + stampedHex:                  false,
		"t=,v1=" + stampedHex:                                      false,
		"t=1767225600;v1=" + stampedHex:                            false,
		"T=1767225600,V1=" + stampedHex:                            false,
		"":                                                         false,
		"t=1767225600," + strings.Repeat("v1="+stampedOtherHex+",", 10) + "v1=" + stampedHex:    true,
		"t=1767225600," + strings.Repeat("v1="+stampedOtherHex+",", 10000) + "v1=" + stampedHex: false,
		"t=1767225600" + strings.Repeat(",t", 1000) + ",v1=" + stampedHex:                       false,
		"t=1767225600,v1=" + stampedHex + ",v1=" + strings.Repeat("a", 1000):                    true,
		"t=1767225600\x00,v1=" + stampedHex:                                                     false,
		"t=1767225600.,v1=" + stampedHex:                                                        false,
		"t=1767225600000,v1=" + stampedHex:                                                      false,
	} {
		expectVerdict(t, timestamped, http.Header{"Provider-Signature": {value}}, good)
	}
	header := http.Header{}
	timestamped.Sign(header, []byte(body), now)
	if want := "t=1767225600,v1=" + stampedHex; header.Get("Provider-Signature") != want {
		t.Errorf("signed %q, want %q", header, want)
	}
}

func expectVerdict(t *testing.T, scheme webhook.Scheme, header http.Header, good bool) {
	t.Helper()
	err := scheme.Verify(header, []byte(body), now)
	if (err == nil) != good || (err != nil && !errors.Is(err, webhook.ErrSignature)) {
		t.Errorf("%.200q: %v, want it good: %t", fmt.Sprint(header), err, good)
	}
}

// TestStandardWebhooksVector is the one that the reference libraries are tested with.
func TestStandardWebhooksVector(t *testing.T) {
	t.Parallel()
	scheme := must(webhook.NewStandardWebhooks(webhook.StandardWebhooksConfig{
		Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
	}))
	const id, event = "msg_p5jXN8AQM9LWM0D4loKWxJek", `{"test": 2432232314}`
	at := time.Unix(1614265330, 0)
	header := http.Header{}
	if err := scheme.Sign(header, id, []byte(event), at); err != nil {
		t.Fatal(err)
	}
	want := http.Header{
		"Webhook-Id":        {id},
		"Webhook-Timestamp": {"1614265330"},
		"Webhook-Signature": {"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
	}
	if fmt.Sprint(header) != fmt.Sprint(want) {
		t.Errorf("signed %q, want %q", header, want)
	}
	if err := scheme.Verify(want, []byte(event), at); err != nil {
		t.Error(err)
	}
}

func TestStandardWebhooksSignatures(t *testing.T) {
	t.Parallel()
	scheme := must(webhook.NewStandardWebhooks(webhook.StandardWebhooksConfig{
		Secrets: encodedSecrets([]string{otherSecretText}),
	}))
	for value, good := range map[string]bool{
		"v1," + standardOtherB64: true,
		"v1a,abc v2, v1,!! v1," + plainBase64 + "  v1," + standardOtherB64: true,
		"v1a," + standardOtherB64:                        false,
		"v1=" + standardOtherB64:                         false,
		"v1,v1," + standardOtherB64:                      false,
		standardOtherB64:                                 false,
		"v1," + strings.TrimRight(standardOtherB64, "="): false,
		// The last two bits of the last digit have no meaning, and so must be zero.
		"v1," + strings.Replace(standardOtherB64, "4=", "5=", 1): false,
		"v1,": false,
	} {
		header := http.Header{}
		header.Set(webhook.HeaderID, "msg_1")
		header.Set(webhook.HeaderTimestamp, "1767225600")
		header.Set(webhook.HeaderSignature, value)
		expectVerdict(t, scheme, header, good)
	}
}

// TestStandardWebhooksPartsDoNotMove: what is signed is one text, and an id with a full stop could borrow from its
// neighbour.
func TestStandardWebhooksPartsDoNotMove(t *testing.T) {
	t.Parallel()
	scheme := must(webhook.NewStandardWebhooks(webhook.StandardWebhooksConfig{
		Secrets: encodedSecrets([]string{secretText}),
	}))
	header := http.Header{}
	if err := scheme.Sign(header, "msg_1", []byte("1767225600."+body), now); err != nil {
		t.Fatal(err)
	}
	header.Set(webhook.HeaderID, "msg_1.1767225600")
	expectVerdict(t, scheme, header, false)
	for _, id := range []string{"", "msg.1"} {
		if err := scheme.Sign(http.Header{}, id, nil, now); err == nil {
			t.Errorf("the id %q is taken", id)
		}
	}
}

func TestStandardWebhooksSecretMustBeOne(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{
		"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whpk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		"whsec_not*base64",
	} {
		_, err := webhook.NewStandardWebhooks(webhook.StandardWebhooksConfig{Secrets: []string{secret}})
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", secret, err)
		}
	}
}

func TestHMACVectors(t *testing.T) {
	t.Parallel()
	const stamp = "X-Timestamp"
	for _, test := range []struct {
		cfg  webhook.HMACConfig
		want string
	}{
		{webhook.HMACConfig{}, plainHex},
		{webhook.HMACConfig{Prefix: "sha256="}, "sha256=" + plainHex},
		{webhook.HMACConfig{Encoding: webhook.EncodingBase64}, plainBase64},
		{webhook.HMACConfig{TimestampHeader: stamp}, stampedHex},
		{webhook.HMACConfig{TimestampHeader: stamp, Encoding: webhook.EncodingBase64, Prefix: "v1:"}, "v1:" + stampedBase64},
	} {
		test.cfg.Header, test.cfg.Secrets = "X-Signature", [][]byte{[]byte(secretText)}
		scheme := must(webhook.NewHMAC(test.cfg))
		header := http.Header{}
		scheme.Sign(header, []byte(body), now)
		if got := header.Get("X-Signature"); got != test.want {
			t.Errorf("%+v: signed %q, want %q", test.cfg, got, test.want)
		}
		for _, value := range []string{
			plainHex, "sha256=" + plainHex, plainBase64, stampedHex, "v1:" + stampedBase64, stampedBase64, "",
			// The last two bits of the last digit have no meaning, and so must be zero.
			strings.Replace(plainBase64, "c=", "d=", 1),
		} {
			expectVerdict(t, scheme, http.Header{"X-Signature": {value}, stamp: {"1767225600"}}, value == test.want)
		}
	}
}

// TestHMACPublishedVector is the example in GitHub's documentation of its webhooks.
func TestHMACPublishedVector(t *testing.T) {
	t.Parallel()
	scheme := must(webhook.NewHMAC(webhook.HMACConfig{
		Header: "X-Hub-Signature-256", Prefix: "sha256=", Secrets: [][]byte{[]byte("It's a Secret to Everybody")},
	}))
	header := http.Header{}
	header.Set("X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")
	if err := scheme.Verify(header, []byte("Hello, World!"), now); err != nil {
		t.Error(err)
	}
}

func TestSchemeConfigMustMakeSense(t *testing.T) {
	t.Parallel()
	secrets := [][]byte{[]byte(secretText)}
	_, noHeader := webhook.NewTimestamped(webhook.TimestampedConfig{Secrets: secrets})
	_, stampedPast := webhook.NewTimestamped(webhook.TimestampedConfig{Header: "S", Secrets: secrets, Tolerance: -1})
	_, standardPast := webhook.NewStandardWebhooks(webhook.StandardWebhooksConfig{
		Secrets: encodedSecrets([]string{secretText}), Tolerance: -1,
	})
	_, plainNoHeader := webhook.NewHMAC(webhook.HMACConfig{Secrets: secrets})
	_, plainPast := webhook.NewHMAC(webhook.HMACConfig{Header: "S", Secrets: secrets, Tolerance: -1})
	_, noEncoding := webhook.NewHMAC(webhook.HMACConfig{Header: "S", Secrets: secrets, Encoding: 2})
	for i, err := range []error{noHeader, stampedPast, standardPast, plainNoHeader, plainPast, noEncoding} {
		if err == nil {
			t.Errorf("config %d is taken", i)
		}
	}
}
