package httppub

import (
	"net/netip"
	"testing"
	"time"
)

func TestPublicAddresses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"1.1.1.1": true, "93.184.215.14": true, "172.15.0.1": true, "172.32.0.1": true, "100.128.0.1": true, "198.20.0.1": true,
		"2606:4700:4700::1111": true, "2a00:1450::1": true, "::ffff:8.8.8.8": true, "64:ff9b::808:808": true,
		"0.0.0.0": false, "0.1.2.3": false, "10.1.2.3": false, "100.64.0.1": false, "100.100.100.200": false,
		"127.0.0.1": false, "127.255.0.1": false, "169.254.169.254": false, "172.16.0.1": false, "172.31.255.255": false,
		"192.0.0.192": false, "192.0.2.1": false, "192.88.99.1": false, "192.168.1.1": false, "198.18.0.1": false,
		"198.19.255.255": false, "198.51.100.1": false, "203.0.113.1": false, "224.0.0.1": false, "239.1.1.1": false,
		"240.0.0.1": false, "255.255.255.255": false, "168.63.129.16": false,
		"::": false, "::1": false, "::7f00:1": false, "::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false,
		"64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false, "64:ff9b:1::1": false, "100::1": false, "2001::1": false,
		"2001:db8::1": false, "2002:7f00:1::1": false, "3fff::1": false, "5f00::1": false, "fc00::1": false,
		"fd00:ec2::254": false, "fe80::1%eth0": false, "fec0::1": false, "ff02::1": false,
	} {
		if got := public(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	if public(netip.Addr{}) {
		t.Error("no address counts as a public one")
	}
}

func TestNoProxy(t *testing.T) {
	t.Parallel()
	if transport(Config{}).Proxy != nil {
		t.Error("a proxy would resolve the name by itself")
	}
}

func TestRetryAfterHeader(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, "-7": 0, "soon": 0, "99999999999999999999": 0,
		"Thu, 01 Jan 2026 00:01:00 GMT": time.Minute, "Wed, 31 Dec 2025 23:59:00 GMT": -time.Minute,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}
