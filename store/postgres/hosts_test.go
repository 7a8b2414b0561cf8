package postgres_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// hostsURL is a URL that names several servers, each by a URL or by an address.
func hostsURL(t testing.TB, like *servers.PostgresServer, others ...string) string {
	t.Helper()
	parsed, err := url.Parse(like.URL())
	must(t, err)
	var hosts []string
	for _, other := range others {
		if at, err := url.Parse(other); err == nil && at.Host != "" {
			other = at.Host
		}
		hosts = append(hosts, other)
	}
	return strings.Replace(like.URL(), parsed.Host, strings.Join(hosts, ","), 1)
}

// silentHost accepts connections and never answers, as a machine does whose database hangs.
func silentHost(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		var held []net.Conn
		for {
			conn, err := listener.Accept()
			if err != nil {
				for _, one := range held {
					_ = one.Close()
				}
				return
			}
			held = append(held, conn)
		}
	}()
	return listener.Addr().String()
}

// deadHost is an address on which nothing listens.
func deadHost(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// newHosts is a primary and a standby, and a store that knows both, behind a server that is gone.
func newHosts(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{T: t, primary: servers.NewPostgres(t), handle: pgxHandle}
	c.standby = c.primary.NewStandby(t)
	must(t, c.primary.Exec(t.Context(), `CREATE TABLE business (value TEXT NOT NULL)`))
	must(t, c.primary.AwaitStandby(t.Context(), c.standby))
	c.store = openStore(t, hostsURL(t, c.primary, deadHost(t), c.standby.URL(), c.primary.URL()))
	return c
}

// TestFailOverAmongHosts: of several servers in a URL the primary is found, without target_session_attrs, when a store is
// opened and after each fail-over, by the next request (scenario 37).
func TestFailOverAmongHosts(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own")
	c := newHosts(t)
	must(t, c.try(waysIn["Transact"], "first"))
	for _, when := range []string{"the standby was promoted", "the first server was promoted again"} {
		must(t, c.primary.AwaitStandby(t.Context(), c.standby))
		busy := c.startTraffic(when)
		must(t, c.primary.Stop())
		busy.awaitRefusals(c) // while there is a standby alone
		must(t, c.standby.Promote(t.Context()))
		c.primary, c.standby = c.standby, c.primary
		c.wantServed(when)
		must(t, c.standby.Follow(c.primary))
		c.wantServed("a standby joined after " + when)
		busy.end()
	}
	c.wantNothingTwice()
}

// TestHostThatHangs: a request passes one of several servers that never answers.
func TestHostThatHangs(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "each connection waits for the host that hangs")
	server := servers.Postgres(t)
	at := hostsURL(t, server, silentHost(t), server.URL()) + "&search_path=" + server.Schema(t)
	config, err := postgres.PoolConfig(at)
	if must(t, err); config.ConnConfig.ConnectTimeout != 2*time.Second {
		t.Errorf("a host may take %s", config.ConnConfig.ConnectTimeout)
	}
	s := openStore(t, at+"&connect_timeout=10")
	if _, err := s.Reserve(t.Context(), reservation("key")); err != nil {
		t.Errorf("behind a host that hangs a reservation got %v", err)
	}
}

// TestOnlyStandbys: if no server of the URL is the primary, opening says so, and executes nothing.
func TestOnlyStandbys(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own; TestStandby has one")
	c := newCluster(t, pgxHandle)
	must(t, c.primary.AwaitStandby(t.Context(), c.standby))
	at := hostsURL(t, c.primary, c.standby.URL(), deadHost(t))
	if _, err := postgres.Open(t.Context(), at, quiet); !errors.Is(err, postgres.ErrStandby) {
		t.Errorf("scenario 13: opening a store on standbys alone got %v, want ErrStandby", err)
	}
}

// TestNameWithSeveralAddresses: of the addresses that a name has, that of the primary is used, whichever comes first.
func TestNameWithSeveralAddresses(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own")
	c := newCluster(t, pgxHandle)
	must(t, c.primary.AwaitStandby(t.Context(), c.standby))
	address := func(s *servers.PostgresServer) string {
		at, err := url.Parse(s.URL())
		must(t, err)
		return at.Host
	}
	config, err := pgxpool.ParseConfig(strings.Replace(c.primary.URL(), address(c.primary), "db.example:5432", 1))
	must(t, err)
	config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) {
		return []string{address(c.standby), address(c.primary)}, nil
	}
	postgres.PreferPrimary(config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	defer pool.Close()
	s, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	defer func() { must(t, s.Close()) }()
	transacted(t, s, "key", nothing)
	must(t, c.primary.Stop())
	must(t, c.standby.Promote(t.Context()))
	transacted(t, s, "another", nothing)
	wantReplay(t, s, "key", "key", "I3")
}

// TestPoolThatDoesNotSay: a pool of the application's own that may lead to standbys is warned of.
func TestPoolThatDoesNotSay(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	at := hostsURL(t, server, server.URL(), deadHost(t)) + "&search_path=" + server.Schema(t)
	for parameter, want := range map[string]bool{"": true, "&target_session_attrs=read-write": false} {
		config, err := pgxpool.ParseConfig(at + parameter)
		must(t, err)
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		must(t, err)
		defer pool.Close()
		book, logging := newLogbook()
		s, err := postgres.New(t.Context(), pool, logging)
		must(t, err)
		defer func() { must(t, s.Close()) }()
		if said := len(book.find("names several servers")) > 0; said != want {
			t.Errorf("with %q it is said: %t, want %t", parameter, said, want)
		}
		if _, err := s.Reserve(t.Context(), reservation("key"+parameter)); err != nil && !errors.Is(err, store.ErrUnavailable) {
			t.Error(err)
		}
	}
}

// TestConnectionsOfItsOwn: a store opens no more connections of its own than it says, beside those of the lanes: one to
// find out where the address leads, and eight to ask what became of commits.
func TestConnectionsOfItsOwn(t *testing.T) {
	t.Parallel()
	address := servers.Postgres(t).SchemaURL(t)
	for name, test := range map[string]struct {
		option postgres.Option
		want   int32
	}{
		"by default":    {quiet, 6},
		"one lane":      {postgres.WithLanes(1), 5},
		"several lanes": {postgres.WithLanes(20), 24},
	} {
		settling, asking, scouting := openStore(t, address, test.option).MostConnections()
		if settling != test.want || asking != 8 || scouting != 1 {
			t.Errorf("%s: %d connections to settle, %d to ask, %d to look where the address leads; want %d, 8 and 1",
				name, settling, asking, scouting, test.want)
		}
	}
}

// TestSightTimeout: a connection that finds out where the address leads, and is never answered, does not stand in the
// way of the next for longer than it is waited for.
func TestSightTimeout(t *testing.T) {
	t.Parallel()
	address := servers.Postgres(t).SchemaURL(t)
	for parameter, want := range map[string]time.Duration{
		"": 5 * time.Second, "connect_timeout=60": 5 * time.Second, "connect_timeout=3": 3 * time.Second,
	} {
		parsed, err := url.Parse(address)
		must(t, err)
		if parsed.RawQuery != "" && parameter != "" {
			parameter = "&" + parameter
		}
		parsed.RawQuery += parameter
		if got := openStore(t, parsed.String()).SightTimeout(); got != want {
			t.Errorf("%q: a sighting may take %s, want %s", parameter, got, want)
		}
	}
}
