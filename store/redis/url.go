package redis

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// mode is the kind of the servers.
type mode int

const (
	modeSingle mode = iota
	modeSentinel
	modeCluster
)

var schemes = map[string]mode{
	"redis": modeSingle, "rediss": modeSingle, "redis+sentinel": modeSentinel, "rediss+sentinel": modeSentinel,
	"redis+cluster": modeCluster, "rediss+cluster": modeCluster,
}

// location is the content of a URL.
type location struct {
	mode      mode
	secured   bool
	addresses []string
	username  string
	password  string
	database  int
	primary   string // the sentinels' name of the primary
	sentinel  rueidis.SentinelOption
	client    string
}

var errURL = errors.New("redis: want a URL like redis://user:password@host:6379/0, " +
	"redis+sentinel://host:26379,host:26379/NAME or redis+cluster://host:6379,host:6379")

// parseURL parses a URL. Its errors do not repeat the URL, which may contain a password.
func parseURL(text string) (*location, error) {
	scheme, rest, _ := strings.Cut(text, "://")
	m, ok := schemes[scheme]
	if !ok {
		return nil, fmt.Errorf("%w; the scheme is not one of these", errURL)
	}
	authority, path := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	hosts := authority[strings.LastIndex(authority, "@")+1:]
	// A URL has one host: the parser gets a placeholder.
	u, err := url.Parse(scheme + "://" + authority[:len(authority)-len(hosts)] + "host" + path)
	if err != nil || u.Fragment != "" {
		return nil, fmt.Errorf("%w; this one cannot be read: are special characters in the password escaped?", errURL)
	}
	where := &location{mode: m, secured: strings.HasPrefix(scheme, "rediss"), client: "onceward"}
	where.username = u.User.Username()
	where.password, _ = u.User.Password()
	if err := where.readHosts(hosts); err != nil {
		return nil, err
	}
	return where, where.readPath(strings.Trim(u.Path, "/"), u.RawQuery)
}

func (l *location) readHosts(list string) error {
	port := "6379"
	if l.mode == modeSentinel {
		port = "26379"
	}
	for one := range strings.SplitSeq(list, ",") {
		host, given, err := net.SplitHostPort(one)
		if err != nil {
			host, given = strings.Trim(one, "[]"), ""
		}
		if host == "" || strings.ContainsAny(host, " /") {
			return fmt.Errorf("%w; a host is missing or wrong", errURL)
		}
		l.addresses = append(l.addresses, net.JoinHostPort(host, cmp.Or(given, port)))
	}
	if l.mode == modeSingle && len(l.addresses) > 1 {
		return fmt.Errorf("%w; several hosts are a redis+cluster:// or a redis+sentinel://", errURL)
	}
	return nil
}

// readPath reads the database, or the name of the primary, and the parameters.
func (l *location) readPath(path, query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return fmt.Errorf("%w; its parameters cannot be read", errURL)
	}
	database := values.Get("db")
	switch {
	case l.mode == modeSentinel && path == "":
		return fmt.Errorf("%w; the name that the sentinels know the primary by is missing", errURL)
	case l.mode == modeSentinel:
		l.primary = path
	case path != "":
		database = path
	}
	if l.database, err = strconv.Atoi(cmp.Or(database, "0")); err != nil || l.database < 0 ||
		l.database != 0 && l.mode == modeCluster {
		return fmt.Errorf("%w; a database is a number, and always 0 in a cluster", errURL)
	}
	for name := range values {
		switch value := values.Get(name); name {
		case "db":
		case "client_name":
			l.client = value
		case "sentinel_username":
			l.sentinel.Username = value
		case "sentinel_password":
			l.sentinel.Password = value
		default:
			return fmt.Errorf("redis: the URL has a parameter %q, which is not known: there are db, client_name, "+
				"sentinel_username and sentinel_password", name)
		}
	}
	return nil
}

const (
	// dialTimeout bounds connecting, and then the greeting.
	dialTimeout = 3 * time.Second
	// topologyRefresh is how often the client queries sentinels and clusters for the primary, beside their
	// notifications.
	topologyRefresh = 5 * time.Second
	// poolCleanup is how often unused connections for commands that block are closed. Each is checked at every
	// heartbeat.
	poolCleanup = time.Minute
	// maxRedirections is how often one call follows a slot to another node.
	maxRedirections = 8
)

// ClientOption returns the store's connection settings for a URL, for tools that inspect the servers with a client of
// their own.
func ClientOption(url string) (rueidis.ClientOption, error) {
	where, err := parseURL(url)
	if err != nil {
		return rueidis.ClientOption{}, err
	}
	return where.config(nil, usualPatience()), nil
}

// config returns the settings of the client. The client repeats nothing on its own: the store knows what can be
// repeated. It follows a redirection, because a server that redirects has done nothing.
func (l *location) config(secured *tls.Config, p patience) rueidis.ClientOption {
	config := rueidis.ClientOption{
		InitAddress: l.addresses, Username: l.username, Password: l.password, ClientName: l.client, SelectDB: l.database,
		Dialer: net.Dialer{Timeout: p.dial, KeepAlive: heartbeat}, DialCtxFn: (&gates{silence: p.silence}).dial,
		ConnWriteTimeout: p.call, DisableCache: true, DisableRetry: true, AlwaysPipelining: true, PipelineMultiplex: 1,
		BlockingPoolCleanup: poolCleanup, BlockingPoolMinSize: maxLanes, ForceSingleClient: l.mode == modeSingle,
	}
	if l.secured {
		config.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		if secured != nil {
			config.TLSConfig = secured.Clone()
		}
	}
	switch l.mode {
	case modeSentinel:
		config.Sentinel = l.sentinel
		config.Sentinel.MasterSet, config.Sentinel.TopologyRefreshInterval = l.primary, topologyRefresh
		config.Sentinel.Dialer, config.Sentinel.TLSConfig = config.Dialer, config.TLSConfig
	case modeCluster:
		config.ClusterOption = rueidis.ClusterOption{
			ShardsRefreshInterval: topologyRefresh, MaxMovedRedirections: maxRedirections,
		}
	}
	return config
}
