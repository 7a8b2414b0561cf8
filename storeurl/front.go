package storeurl

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/tiered"
)

// isRedis reports whether a scheme is a scheme of Redis.
func isRedis(scheme string) bool {
	kind, _, _ := strings.Cut(scheme, "+")
	return kind == "redis" || kind == "rediss"
}

var errFront = errors.New("storeurl: the parameter front is not the URL of a Redis server: write " +
	"?front=redis://host:6379/0, with & # and % inside of it escaped")

// cutFront removes the parameter front from a URL, and leaves the rest unchanged, because the databases parse it
// themselves. A path that contains a question mark stays a path. The error does not quote the URL, which may contain a
// password.
func cutFront(text string) (rest, front string, err error) {
	rest, fronts, err := cutParameter(text, "front")
	if err != nil || len(fronts) > 1 || len(fronts) == 1 && !isFront(fronts[0]) {
		return "", "", errFront
	}
	if len(fronts) == 0 {
		return text, "", nil
	}
	return rest, fronts[0], nil
}

// cutParameter removes a parameter from a URL, and returns the rest of the URL and the values of the parameter.
func cutParameter(text, name string) (rest string, values []string, err error) {
	rest, query, _ := strings.Cut(text, "?")
	var others []string
	for part := range strings.SplitSeq(query, "&") {
		value, ok := strings.CutPrefix(part, name+"=")
		if !ok {
			others = append(others, part)
			continue
		}
		// Not QueryUnescape: a + is part of redis+cluster://, and no URL has a space in it.
		if value, err = url.PathUnescape(value); err != nil {
			return "", nil, err
		}
		values = append(values, value)
	}
	if query := strings.Join(others, "&"); query != "" {
		rest += "?" + query
	}
	return rest, values, nil
}

// isFront reports whether a text can be the URL of a front. A port that is no number is probably the beginning of a
// password in which a & was not escaped: the text before it would be looked up as the name of a server, and logged.
func isFront(text string) bool {
	scheme, rest, found := strings.Cut(text, "://")
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		rest = rest[:i]
	}
	for host := range strings.SplitSeq(rest[strings.LastIndex(rest, "@")+1:], ",") {
		if _, port, err := net.SplitHostPort(host); err == nil && port != "" {
			if _, err := strconv.ParseUint(port, 10, 16); err != nil {
				return false
			}
		}
	}
	return found && isRedis(scheme)
}

// withFront returns a store with a front before it.
func withFront(ctx context.Context, durable Store, at string, o options) (Store, error) {
	at, with, err := o.redis(at)
	if err != nil {
		return durable, err
	}
	front, err := redis.OpenFront(ctx, at, with...)
	if err != nil {
		return durable, err
	}
	s, err := tiered.New(durable, front, tiered.Config{Logger: o.logger})
	if err != nil {
		return durable, errors.Join(err, front.Close())
	}
	return s, nil
}

var errPrefix = errors.New("storeurl: the parameter prefix of a Redis is there twice, or cannot be read")

// redis returns the URL of a Redis server without the parameters that are options, and the options.
func (o options) redis(at string) (rest string, with []redis.Option, err error) {
	rest, prefixes, err := cutParameter(at, "prefix")
	if err != nil || len(prefixes) > 1 {
		return "", nil, errPrefix
	}
	for _, prefix := range prefixes {
		with = append(with, redis.WithPrefix(prefix))
	}
	rest, only, err := cutSwitch(rest, syncReplicasOnly)
	if err != nil {
		return "", nil, err
	}
	if only {
		with = append(with, redis.WithSyncReplicasOnly())
	}
	if o.logger != nil {
		with = append(with, redis.WithLogger(o.logger))
	}
	return rest, with, nil
}
