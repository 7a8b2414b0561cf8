package mysql

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
)

var errURL = errors.New("mysql: want a URL like mysql://user:password@host:3306,host:3306/database?parameter=value, " +
	"or a data source name of the driver")

const (
	defaultPort = "3306"
	// dialTimeout bounds the time to make a connection, so that an
	// unreachable host does not keep a caller from the next host.
	dialTimeout = 3 * time.Second
)

// location is a parsed URL.
type location struct {
	// config is the driver's configuration for the first of the addresses.
	config    *driver.Config
	addresses []string
}

// parseURL parses a URL, or a data source name of the driver.
// Its errors do not repeat the text, which may hold a password.
func parseURL(text string) (*location, error) {
	scheme, rest, isURL := strings.Cut(text, "://")
	if !isURL || strings.ContainsAny(scheme, "/@:") {
		return parseDSN(text)
	}
	if scheme != "mysql" && scheme != "mariadb" {
		return nil, fmt.Errorf("%w; the scheme is not one of these", errURL)
	}
	authority, path := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	hosts := authority[strings.LastIndex(authority, "@")+1:]
	// A URL has one host, so the parser gets a URL with one host instead of the list.
	u, err := url.Parse("mysql://" + authority[:len(authority)-len(hosts)] + "host" + path)
	if err != nil || u.Fragment != "" {
		return nil, fmt.Errorf("%w; this one cannot be read: are special characters in the password escaped?", errURL)
	}
	where, err := parseDSN("/?" + u.RawQuery)
	if err != nil {
		return nil, err
	}
	config := where.config
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	config.DBName = strings.Trim(u.Path, "/")
	where.addresses = nil
	if err := where.readHosts(hosts); err != nil {
		return nil, err
	}
	config.Net, config.Addr = "tcp", where.addresses[0]
	return where, nil
}

// wrongParameters are session variables with which the store cannot work.
var wrongParameters = map[string]string{
	"tx_read_only":          "refuses all writes",
	"transaction_read_only": "refuses all writes",
	"sql_select_limit":      "cuts off what the store reads",
	"timestamp":             "stops the clock that leases and retentions are counted by",
}

func parseDSN(text string) (*location, error) {
	config, err := driver.ParseDSN(text)
	if err != nil {
		return nil, fmt.Errorf("%w; its form or its parameters cannot be read", errURL)
	}
	for name := range config.Params {
		if why, wrong := wrongParameters[strings.ToLower(name)]; wrong {
			return nil, fmt.Errorf("mysql: the parameter %s %s: remove it", name, why)
		}
	}
	config.Timeout = cmp.Or(config.Timeout, dialTimeout)
	return &location{config: config, addresses: []string{config.Addr}}, nil
}

func (l *location) readHosts(list string) error {
	for one := range strings.SplitSeq(list, ",") {
		host, port, err := net.SplitHostPort(one)
		if err != nil {
			host, port = strings.Trim(one, "[]"), ""
		}
		if host == "" || strings.ContainsAny(host, " /") {
			return fmt.Errorf("%w; a host is missing or wrong", errURL)
		}
		l.addresses = append(l.addresses, net.JoinHostPort(host, cmp.Or(port, defaultPort)))
	}
	return nil
}
