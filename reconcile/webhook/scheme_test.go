package webhook_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/reconcile/webhook"
)

// signing is a scheme with its Sign, which is not the same for all.
type signing struct {
	name   string
	scheme webhook.Scheme
	sign   func(header http.Header, body []byte, at time.Time)
	// headers are the headers that it reads, and timed is set if one of them is a timestamp.
	headers []string
	timed   bool
}

// schemes makes each scheme with these secrets.
func schemes(secrets ...string) []signing {
	raw := rawSecrets(secrets)
	stamped := must(webhook.NewTimestamped(webhook.TimestampedConfig{Header: "Provider-Signature", Secrets: raw}))
	standard := must(webhook.NewStandardWebhooks(webhook.StandardWebhooksConfig{Secrets: encodedSecrets(secrets)}))
	plain := must(webhook.NewHMAC(webhook.HMACConfig{Header: "X-Signature", Secrets: raw, Prefix: "sha256="}))
	timed := must(webhook.NewHMAC(webhook.HMACConfig{
		Header: "X-Signature", Secrets: raw, Encoding: webhook.EncodingBase64, TimestampHeader: "X-Timestamp",
	}))
	return []signing{
		{"timestamped", stamped, stamped.Sign, []string{"Provider-Signature"}, true},
		{"standard webhooks", standard, func(h http.Header, body []byte, at time.Time) {
			if err := standard.Sign(h, "msg_1", body, at); err != nil {
				panic(err)
			}
		}, []string{"Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"}, true},
		{"hmac", plain, plain.Sign, []string{"X-Signature"}, false},
		{"hmac with timestamp", timed, timed.Sign, []string{"X-Signature", "X-Timestamp"}, true},
	}
}

// forEach runs a test with each scheme and the headers of a good delivery.
func forEach(t *testing.T, test func(t *testing.T, s signing, good http.Header)) {
	for _, s := range schemes(secretText) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			good := http.Header{}
			s.sign(good, []byte(body), now)
			if err := s.scheme.Verify(good, []byte(body), now); err != nil {
				t.Fatal("a good delivery is refused:", err)
			}
			test(t, s, good)
		})
	}
}

func with(header http.Header, name, value string) http.Header {
	changed := header.Clone()
	changed.Set(name, value)
	return changed
}

func TestForgedBodyIsRefused(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, s signing, good http.Header) {
		for i := range 8 * len(body) {
			forged := []byte(body)
			forged[i/8] ^= 1 << (i % 8)
			if err := s.scheme.Verify(good, forged, now); !errors.Is(err, webhook.ErrSignature) {
				t.Errorf("%q: %v", forged, err)
			}
		}
		for _, forged := range []string{"", body[1:], body[:len(body)-1], body + "\n"} {
			if err := s.scheme.Verify(good, []byte(forged), now); !errors.Is(err, webhook.ErrSignature) {
				t.Errorf("%q: %v", forged, err)
			}
		}
	})
}

// TestForgedHeadersAreRefused: every character of every header counts, whether it is changed, cut off or repeated.
func TestForgedHeadersAreRefused(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, s signing, good http.Header) {
		refused := func(what string, header http.Header) {
			if err := s.scheme.Verify(header, []byte(body), now); !errors.Is(err, webhook.ErrSignature) {
				t.Errorf("%s: %q: %v", what, header, err)
			}
		}
		refused("none", http.Header{})
		for _, name := range s.headers {
			value := good.Get(name)
			for i := range len(value) {
				changed := []byte(value)
				changed[i] ^= 1
				refused("one bit", with(good, name, string(changed)))
				refused("cut off", with(good, name, value[:i]))
			}
			missing := good.Clone()
			missing.Del(name)
			refused("missing", missing)
			twice := good.Clone()
			twice.Add(name, value)
			refused("twice", twice)
			refused("huge", with(good, name, value+strings.Repeat(" ", 1<<20)))
			refused("huge and full of signatures", with(good, name, strings.Repeat(value+",", 1000)+value))
		}
	})
}

func TestOtherSecretIsRefusedAndRotatedOneIsNot(t *testing.T) {
	t.Parallel()
	before, during, after := schemes(secretText), schemes(otherSecretText, secretText), schemes(otherSecretText)
	verify := func(signer, verifier signing) error {
		header := http.Header{}
		signer.sign(header, []byte(body), now)
		return verifier.scheme.Verify(header, []byte(body), now)
	}
	for i, s := range before {
		if err := verify(s, after[i]); !errors.Is(err, webhook.ErrSignature) {
			t.Errorf("%s: a delivery of another secret: %v", s.name, err)
		}
		for _, signer := range []signing{before[i], during[i], after[i]} {
			if err := verify(signer, during[i]); err != nil {
				t.Errorf("%s: in a rotation: %v", s.name, err)
			}
		}
		if err := verify(during[i], after[i]); err != nil {
			t.Errorf("%s: a sender that signs with both: %v", s.name, err)
		}
	}
}

func TestToleranceHoldsInBothDirections(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, s signing, good http.Header) {
		for _, skew := range []time.Duration{webhook.DefaultTolerance, -webhook.DefaultTolerance} {
			if err := s.scheme.Verify(good, []byte(body), now.Add(skew)); err != nil {
				t.Errorf("%s: %v", skew, err)
			}
		}
		late, early := webhook.DefaultTolerance+time.Nanosecond, -webhook.DefaultTolerance-time.Nanosecond
		for _, skew := range []time.Duration{late, early, 1000 * time.Hour, -1000 * time.Hour} {
			err := s.scheme.Verify(good, []byte(body), now.Add(skew))
			if s.timed && (!errors.Is(err, webhook.ErrStale) || errors.Is(err, webhook.ErrSignature)) {
				t.Errorf("%s: %v", skew, err)
			}
			if !s.timed && err != nil {
				t.Errorf("%s: a scheme without a timestamp knows no age, and yet: %v", skew, err)
			}
		}
		if err := s.scheme.Verify(good, nil, now.Add(late)); !errors.Is(err, webhook.ErrSignature) {
			t.Errorf("forged and stale is foremost forged: %v", err)
		}
	})
}

// TestMillisecondsAreNoSeconds: a sender that counts otherwise needs another scheme, and the log shows it.
func TestMillisecondsAreNoSeconds(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, s signing, _ http.Header) {
		header := http.Header{}
		s.sign(header, []byte(body), time.Unix(now.UnixMilli(), 0))
		if err := s.scheme.Verify(header, []byte(body), now); s.timed && !errors.Is(err, webhook.ErrSignature) {
			t.Error(err)
		}
	})
}

func TestSecretsMustBeStrong(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		secrets []string
		want    string
	}{
		{nil, "no secret"},
		{[]string{""}, "secret 1 of 1 is too short"},
		{[]string{secretText, "fifteen bytes.."}, "secret 2 of 2 is too short: it has 15 bytes and needs 16"},
	} {
		for _, build := range []func([]string) error{
			func(s []string) error {
				_, err := webhook.NewTimestamped(webhook.TimestampedConfig{Header: "S", Secrets: rawSecrets(s)})
				return err
			},
			func(s []string) error {
				_, err := webhook.NewHMAC(webhook.HMACConfig{Header: "S", Secrets: rawSecrets(s)})
				return err
			},
			func(s []string) error {
				_, err := webhook.NewStandardWebhooks(webhook.StandardWebhooksConfig{Secrets: encodedSecrets(s)})
				return err
			},
		} {
			if err := build(test.secrets); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%q: %v, want %q", test.secrets, err, test.want)
			}
		}
	}
}

func rawSecrets(secrets []string) (raw [][]byte) {
	for _, secret := range secrets {
		raw = append(raw, []byte(secret))
	}
	return raw
}

func encodedSecrets(secrets []string) (encoded []string) {
	for _, secret := range secrets {
		encoded = append(encoded, "whsec_"+base64.StdEncoding.EncodeToString([]byte(secret)))
	}
	return encoded
}

// TestSecretsDoNotLeak: neither into what is printed nor into what is logged.
func TestSecretsDoNotLeak(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, s signing, good http.Header) {
		err := s.scheme.Verify(good, nil, now)
		for _, text := range []string{fmt.Sprintf("%+v", s.scheme), fmt.Sprintf("%#v", s.scheme), fmt.Sprint(err)} {
			for _, secret := range []string{
				secretText, fmt.Sprint([]byte(secretText))[1:],
				fmt.Sprintf("%#v", []byte(secretText)),
			} {
				if strings.Contains(text, secret) {
					t.Errorf("%s shows the secret", text)
				}
			}
		}
	})
}

// TestSecretsAreCopied: who wipes the slice does not change the scheme.
func TestSecretsAreCopied(t *testing.T) {
	t.Parallel()
	secret := []byte(secretText)
	scheme := must(webhook.NewTimestamped(webhook.TimestampedConfig{
		Header:  "Provider-Signature",
		Secrets: [][]byte{secret},
	}))
	clear(secret)
	if err := scheme.Verify(signedRequest(body).Header, []byte(body), now); err != nil {
		t.Error(err)
	}
}
