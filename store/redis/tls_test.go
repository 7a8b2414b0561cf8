package redis_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/redis"
)

// TestSecured opens stores on a server whose connections are secured: one that trusts its authority works, and one that
// does not is refused.
func TestSecured(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	certified := httptest.NewTLSServer(nil) // for its certificate
	certified.Close()
	secured, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: certified.TLS.Certificates})
	must(t, err)
	t.Cleanup(func() { must(t, secured.Close()) })
	go carry(secured, server.Addr())
	url, prefix := "rediss://"+secured.Addr().String(), redis.WithPrefix(server.Prefix(t))
	authorities := x509.NewCertPool()
	authorities.AddCert(certified.Certificate())
	s := open(t, url, prefix, redis.WithTLS(&tls.Config{RootCAs: authorities}))
	_, err = s.Complete(t.Context(), booked(t, s, "secured"), paid("done"))
	must(t, err)
	_, err = redis.Open(t.Context(), url, prefix, quiet)
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server of an unknown authority: %v", err)
	}
}

// carry carries the connections that are made to a listener on to an address.
func carry(from net.Listener, to string) {
	for {
		client, err := from.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			server, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(client, server) }()
			_, _ = io.Copy(server, client)
			_ = server.Close()
		}()
	}
}
