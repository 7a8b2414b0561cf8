package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// demoStore is the store of one demo. On a server, each data directory has a schema of its own: the provider's ledger
// is in the directory, and the system must not know charges that the ledger does not.
type demoStore struct {
	url string
	// server and schema are set on PostgreSQL alone.
	server, schema string
}

// connectLimit is how long a server has to answer at the start.
const connectLimit = 10 * time.Second

// openStore makes the schema if it needs one. On an error there is no store, and nothing to be removed.
func openStore(ctx context.Context, chosen string, dir directory, secret []byte) (demoStore, error) {
	if chosen == "" {
		return demoStore{url: "sqlite:" + dir.file("payments.db")}, nil
	}
	place, _, _ := strings.Cut(chosen, "?") // a front has a URL of its own behind it
	if dir.temporary && !strings.Contains(place, "://") {
		return demoStore{}, errors.New(
			"--store with a file needs --dir: the provider's ledger has to last as long as the file")
	}
	if !strings.HasPrefix(chosen, "postgres://") && !strings.HasPrefix(chosen, "postgresql://") {
		return demoStore{url: chosen}, nil
	}
	sum := sha256.Sum256(secret)
	s := demoStore{server: chosen, schema: "onceward_demo_" + hex.EncodeToString(sum[:6])}
	parsed, err := url.Parse(chosen)
	if err != nil {
		return demoStore{}, errors.New("--store is not a URL such as postgres://user@host/database")
	}
	query := parsed.Query()
	query.Set("search_path", s.schema)
	s.url = withQuery(*parsed, query)
	if query.Has("front") { // which is for the store alone
		query.Del("front")
		query.Del("search_path")
		s.server = withQuery(*parsed, query)
	}
	if err := s.execute(ctx, "CREATE SCHEMA IF NOT EXISTS "+s.schema); err != nil {
		return demoStore{}, schemaError(err)
	}
	return s, nil
}

func withQuery(u url.URL, query url.Values) string {
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes a plus sign as it stands
	return u.String()
}

// insufficientPrivilege is the code by which PostgreSQL says that a user may not do something.
const insufficientPrivilege = "42501"

// schemaError says what to do about a schema that could not be made.
func schemaError(err error) error {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == insufficientPrivilege {
		return fmt.Errorf("the demo makes a schema of its own in the database of --store, and its user may not: "+
			"grant it CREATE on the database: %s", oneLine(err))
	}
	return fmt.Errorf("the database of --store cannot be used: %s", oneLine(err))
}

// oneLine writes an error without the lines that it repeats: a server is tried in several ways, which mostly fail
// alike.
func oneLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(parts, line) {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, " ")
}

// remove removes the schema. A file goes with its directory.
func (s demoStore) remove() error {
	if s.schema == "" {
		return nil
	}
	if err := s.execute(context.Background(), "DROP SCHEMA "+s.schema+" CASCADE"); err != nil {
		return fmt.Errorf("the schema %s is left behind: %s", s.schema, oneLine(err))
	}
	return nil
}

func (s demoStore) execute(ctx context.Context, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.server)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	_ = conn.Close(ctx) // the statement has been answered
	return err
}

// kind is what people call the store, and where they find it on a server.
func (s demoStore) kind() string {
	if s.schema != "" {
		return "PostgreSQL in the schema " + s.schema
	}
	return "SQLite"
}

// withoutPassword is a URL that can be shown, and whether it was shortened for that.
func withoutPassword(store string) (shown string, had bool) {
	parsed, err := url.Parse(store)
	if err != nil {
		return "URL", true
	}
	if parsed.User != nil {
		_, had = parsed.User.Password()
		parsed.User = url.User(parsed.User.Username())
	}
	query := parsed.Query()
	for _, name := range []string{"password", "sslpassword"} {
		had = had || query.Has(name)
		query.Del(name)
	}
	if !had {
		return store, false
	}
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes a plus sign as it stands
	return parsed.String(), true
}
