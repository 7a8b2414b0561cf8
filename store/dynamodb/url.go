package dynamodb

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
)

// location is the content of a URL.
type location struct {
	table    string
	region   string
	endpoint string
	profile  string
}

var errURL = errors.New("dynamodb: want a URL like dynamodb://TABLE?region=eu-central-1, " +
	"with endpoint=http://127.0.0.1:8000 for an emulator")

// tables matches the table names that the service accepts.
var tables = regexp.MustCompile(`^[A-Za-z0-9_.-]{3,255}$`)

// parseURL parses a URL. Its errors do not repeat the URL, which may contain secrets.
func parseURL(text string) (*location, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "dynamodb" || u.Fragment != "" || u.Path != "" && u.Path != "/":
		return nil, errURL
	case u.User != nil:
		return nil, fmt.Errorf("%w; credentials come from the environment or a profile, not from the URL", errURL)
	case !tables.MatchString(u.Host):
		return nil, fmt.Errorf("%w; a table has 3 to 255 letters, digits and the characters . _ -", errURL)
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w; its parameters cannot be read", errURL)
	}
	where := &location{table: u.Host}
	for name := range values {
		switch value := values.Get(name); name {
		case "region":
			where.region = value
		case "endpoint":
			where.endpoint = value
		case "profile":
			where.profile = value
		default:
			return nil, fmt.Errorf("dynamodb: the URL has a parameter %q, which is not known: there are region, endpoint "+
				"and profile", name)
		}
	}
	return where, where.checkEndpoint()
}

func (l *location) checkEndpoint() error {
	if l.endpoint == "" {
		return nil
	}
	u, err := url.Parse(l.endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%w; the endpoint is not an http or https URL", errURL)
	}
	return nil
}

// emulated reports whether the endpoint is an emulator on this machine and there are no credentials: any will do.
func (l *location) emulated() bool {
	u, err := url.Parse(l.endpoint)
	if err != nil || l.profile != "" || os.Getenv("AWS_ACCESS_KEY_ID") != "" || os.Getenv("AWS_PROFILE") != "" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
