package httppub

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// ErrAddress is returned when a receiver's address is not public and [Config.AllowPrivate] is not set.
var ErrAddress = errors.New("httppub: the address is not a public one")

// special are the unicast blocks of IANA's registries of special-purpose addresses, and one more
// address: virtual machines at a large provider reach their host under it, although it looks public.
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
	"198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
	"2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
)

var (
	// globalUnicast is the only part of the IPv6 space in which public addresses have been assigned.
	globalUnicast = netip.MustParsePrefix("2000::/3")
	// nat64 are the addresses whose last four bytes are an IPv4
	// address, by which a network without IPv4 reaches that address.
	nat64 = netip.MustParsePrefix("64:ff9b::/96")
)

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParsePrefix(text)
	}
	return all
}

// public reports whether an address is on the public Internet. An
// IPv4 address inside an IPv6 address counts as the IPv4 address.
func public(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	if nat64.Contains(a) {
		bytes := a.As16()
		a = netip.AddrFrom4([4]byte(bytes[12:]))
	}
	if a.Is6() && !globalUnicast.Contains(a) {
		return false
	}
	for _, block := range special {
		if block.Contains(a) {
			return false
		}
	}
	return a.IsValid()
}

// checkLiteral refuses a host that is written as an address
// and is not allowed. Names are checked when they are dialled.
func checkLiteral(host string, allowPrivate bool) error {
	if a, err := netip.ParseAddr(host); err == nil && !allowPrivate && !public(a) {
		return fmt.Errorf("%w: %s", ErrAddress, a)
	}
	return nil
}

// dialer returns a dialer that refuses addresses that are not allowed. It checks the very
// address of the connection, so it does not matter how the name was resolved before.
func dialer(allowPrivate bool) *net.Dialer {
	d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	if !allowPrivate {
		d.Control = func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil || !public(ap.Addr()) {
				return fmt.Errorf("%w: %s", ErrAddress, address)
			}
			return nil
		}
	}
	return d
}
