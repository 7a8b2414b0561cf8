package httppub_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httppub"
)

// A name is judged by what it resolves to when it is dialled, so that it cannot resolve to something else afterwards.
func TestPrivateAddressBehindAName(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, answering(http.StatusOK, ""))
	config := local(strings.Replace(r.URL, "127.0.0.1", "localhost", 1))
	config.AllowPrivate, config.AllowPlainHTTP = false, true
	err := newPublisher(t, config).Publish(t.Context(), event())
	if !errors.Is(err, httppub.ErrAddress) || errors.Is(err, outbox.ErrPermanent) {
		t.Error(err)
	}
	if len(r.deliveries()) > 0 {
		t.Error("the receiver was reached")
	}
}

// A URL that can never be sent to makes a dead letter, and its error does not quote it.
func TestURLsThatAreRefused(t *testing.T) {
	t.Parallel()
	config := local("")
	config.AllowPrivate = false
	config.URL = func(e *outbox.Event) (string, error) { return e.Subject, nil }
	p := newPublisher(t, config)
	for _, text := range []string{
		"", "hidden", "/hooks", "https://", "http://receiver.example/", "ftp://receiver.example/", "file:///etc/passwd",
		"https://user:hid\x7fden@host/", "https://user:hidden@host:port/", "https://10.0.0.1/?hidden", "https://[::1]/",
		"https://[::ffff:169.254.169.254]/", "https://[64:ff9b::a00:1]/", "https://0.0.0.0/", "https://[fe80::1%25eth0]/",
	} {
		err := p.Publish(t.Context(), &outbox.Event{ID: "1", Subject: text})
		if !errors.Is(err, outbox.ErrPermanent) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestConfigsThatAreRefused(t *testing.T) {
	t.Parallel()
	chosen := func(*outbox.Event) (string, error) { return "https://receiver.example", nil }
	chosenSecrets := func(*outbox.Event) ([]string, error) { return []string{secret}, nil }
	for name, change := range map[string]func(c *httppub.Config){
		"no URL":              func(c *httppub.Config) { c.Endpoint = "" },
		"two URLs":            func(c *httppub.Config) { c.URL = chosen },
		"a URL without host":  func(c *httppub.Config) { c.Endpoint = "/hooks" },
		"plain HTTP":          func(c *httppub.Config) { c.Endpoint = "http://receiver.example" },
		"a private address":   func(c *httppub.Config) { c.Endpoint = "https://192.168.0.1" },
		"no secret":           func(c *httppub.Config) { c.Secrets = nil },
		"two kinds of secret": func(c *httppub.Config) { c.SecretsFor = chosenSecrets },
		"signed and unsigned": func(c *httppub.Config) { c.Unsigned = true },
		"not base64":          func(c *httppub.Config) { c.Secrets = []string{"whsec_topsecret!"} },
		"a short secret":      func(c *httppub.Config) { c.Secrets = []string{"whsec_dG9wc2VjcmV0"} },
		"a negative timeout":  func(c *httppub.Config) { c.Timeout = -1 },
		"a reserved header":   func(c *httppub.Config) { c.Header = http.Header{"ce-id": {"1"}} },
	} {
		config := httppub.Config{Endpoint: "https://receiver.example", Secrets: []string{secret}}
		change(&config)
		if _, err := httppub.New(config); err == nil || strings.Contains(err.Error(), "topsecret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Secrets that are wrong or missing for one event do not let it go out unsigned.
func TestSecretsByEventFail(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, answering(http.StatusOK, ""))
	unknown := errors.New("no such tenant")
	for name, answer := range map[string]func(*outbox.Event) ([]string, error){
		"error": func(*outbox.Event) ([]string, error) { return nil, unknown },
		"none":  func(*outbox.Event) ([]string, error) { return nil, nil },
		"wrong": func(*outbox.Event) ([]string, error) { return []string{"whsec_topsecret!"}, nil },
	} {
		config := httppub.Config{Endpoint: r.URL, SecretsFor: answer, AllowPrivate: true}
		err := newPublisher(t, config).Publish(t.Context(), event())
		if err == nil || errors.Is(err, outbox.ErrPermanent) || strings.Contains(err.Error(), "topsecret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(r.deliveries()); n > 0 {
		t.Errorf("%d events went out", n)
	}
}
