package storeurl

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Engine is the kind of store that a URL names.
type Engine string

// These are the engines.
const (
	Postgres Engine = "postgres"
	SQLite   Engine = "sqlite"
	MySQL    Engine = "mysql"
	Redis    Engine = "redis"
	DynamoDB Engine = "dynamodb"
)

// Location is the parsed URL of a store.
type Location struct {
	Engine Engine
	// URL is the URL for the engine's own client, without the parameters of this package; for SQLite it is a path.
	URL string
	// Schema is the schema of the tables on PostgreSQL; empty means the first one of the role's search_path.
	Schema string
	// Prefix is the prefix of the names of keys on Redis and of tables on PostgreSQL and MySQL; empty means the
	// default.
	Prefix string
	// SyncReplicasOnly means that a store that could lose acknowledged answers at a fail-over is refused.
	SyncReplicasOnly bool
	// Front is the URL of the cache before a database; empty if there is none.
	Front string
}

// Parse parses a URL without opening anything, for tools that read a store with their own client.
func Parse(url string) (Location, error) {
	rest, front, err := cutFront(url)
	if err != nil {
		return Location{}, err
	}
	at, err := parse(rest)
	if err == nil && front != "" && !at.Engine.isDatabase() {
		err = errFrontOfOther
	}
	if err != nil {
		return Location{}, err
	}
	at.Front = front
	return at, nil
}

// parse parses a URL without the parameter front.
func parse(rest string) (Location, error) {
	scheme, path, found := strings.Cut(rest, ":")
	switch {
	case rest == "":
		return Location{}, errors.New("storeurl: the store is not named: use a path of a file, " +
			"postgres://user@host/database, mysql://user@host/database, redis://host:6379/0 or dynamodb://TABLE")
	case found && (scheme == "postgres" || scheme == "postgresql"):
		return parseTables(Postgres, rest)
	case found && (scheme == "mysql" || scheme == "mariadb"):
		return parseTables(MySQL, "mysql:"+path)
	case found && isRedis(scheme):
		return parseRedis(rest)
	case found && scheme == "dynamodb":
		return Location{Engine: DynamoDB, URL: rest}, nil
	case found && scheme == "sqlite":
		return Location{Engine: SQLite, URL: strings.TrimPrefix(path, "//")}, nil
	case strings.Contains(rest, "://"):
		return Location{}, fmt.Errorf("storeurl: no store is called %q: use postgres://…, mysql://…, sqlite:PATH, "+
			"redis://… or dynamodb://…", scheme)
	case keywords.MatchString(rest):
		return Location{}, errKeywords
	case dataSource.MatchString(rest):
		return Location{}, errDataSource
	default:
		return Location{Engine: SQLite, URL: strings.TrimPrefix(rest, "//")}, nil
	}
}

// keywords matches the keywords by which libpq can name a server instead of a URL. As a path they would put the
// password into the name of a file. A file that really has such a name needs sqlite: before it.
var keywords = regexp.MustCompile(`(^|\s)(host|hostaddr|dbname|user|password)\s*=`)

var errKeywords = errors.New("storeurl: keywords and values are not taken: use postgres://user@host/database")

// dataSource matches a data source name of the MySQL driver. As a path it would put the password into a file's name,
// too.
var dataSource = regexp.MustCompile(`@?(tcp|unix)\(.*\)/`)

var errDataSource = errors.New("storeurl: a data source name is not taken: use mysql://user@host:3306/database")

// isDatabase reports whether the engine has tables and transactions.
func (e Engine) isDatabase() bool { return e == Postgres || e == SQLite || e == MySQL }

// parseTables parses the URL of a server with tables, and the names of the tables. A schema is for PostgreSQL only: on
// MySQL the schema is the database itself.
func parseTables(engine Engine, url string) (at Location, err error) {
	at = Location{Engine: engine, URL: url}
	parameters := map[string]*string{"prefix": &at.Prefix}
	if engine == Postgres {
		parameters["schema"] = &at.Schema
	}
	for name, to := range parameters {
		rest, values, err := cutParameter(at.URL, name)
		if err != nil || len(values) > 1 {
			return Location{}, fmt.Errorf("storeurl: the parameter %s is there twice, or cannot be read", name)
		}
		if len(values) == 1 {
			at.URL, *to = rest, values[0]
		}
	}
	at.URL, at.SyncReplicasOnly, err = cutSwitch(at.URL, syncReplicasOnly)
	return at, err
}

// syncReplicasOnly is the parameter that refuses stores that could lose acknowledged answers at a fail-over.
const syncReplicasOnly = "sync_replicas_only"

// cutSwitch removes a parameter that is true or false from a URL. If the URL does not have it, it is false.
func cutSwitch(url, name string) (rest string, on bool, err error) {
	rest, values, err := cutParameter(url, name)
	if err != nil || len(values) > 1 || len(values) == 1 && values[0] != "true" && values[0] != "false" {
		return url, false, fmt.Errorf("storeurl: the parameter %s is neither true nor false, or is there twice", name)
	}
	if len(values) == 0 {
		return url, false, nil
	}
	return rest, values[0] == "true", nil
}

func parseRedis(url string) (Location, error) {
	rest, prefixes, err := cutParameter(url, "prefix")
	if err != nil || len(prefixes) > 1 {
		return Location{}, errPrefix
	}
	at := Location{Engine: Redis, URL: rest}
	if len(prefixes) == 1 {
		at.Prefix = prefixes[0]
	}
	at.URL, at.SyncReplicasOnly, err = cutSwitch(at.URL, syncReplicasOnly)
	return at, err
}
