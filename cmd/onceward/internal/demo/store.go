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

	"github.com/onceward/onceward/storeurl"
)

// demoStore is the store of one demo. On a server, each data directory has a schema, a database or tables of its own:
// the provider's ledger is in the directory, and the system must not know charges that the ledger does not.
type demoStore struct {
	url string
	// items is the table of what the system writes down on a store without SQL.
	items string
	// kind is what people call the store, where is what the demo has made on its server, empty for a file, and drop
	// removes that.
	kind, where string
	drop        func(ctx context.Context) error
}

// connectLimit is how long a server has to answer at the start.
const connectLimit = 10 * time.Second

// openStore makes what the store needs on its server. On an error there is no store, and nothing to be removed.
func openStore(ctx context.Context, chosen string, dir directory, secret []byte) (demoStore, error) {
	if chosen == "" {
		return demoStore{url: "sqlite:" + dir.file("payments.db"), kind: "SQLite"}, nil
	}
	at, err := storeurl.Parse(chosen)
	if err != nil {
		return demoStore{}, fmt.Errorf("--store: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	sum := sha256.Sum256(secret)
	name := "onceward_demo_" + hex.EncodeToString(sum[:6])
	switch at.Engine {
	case storeurl.SQLite:
		if dir.temporary {
			return demoStore{}, errors.New(
				"--store with a file needs --dir: the provider's ledger has to last as long as the file")
		}
		return demoStore{url: chosen, kind: "SQLite"}, nil
	case storeurl.Postgres:
		return openSchema(ctx, chosen, name)
	case storeurl.MySQL:
		return openMySQL(ctx, chosen, name)
	case storeurl.DynamoDB:
		return openTables(ctx, chosen, hex.EncodeToString(sum[:6]))
	default:
		return demoStore{}, fmt.Errorf("--store: the demo needs transactions, which %s has not: use postgres://…, "+
			"mysql://…, dynamodb://… or sqlite:PATH", at.Engine)
	}
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

// remove removes what was made on a server. A file goes with its directory.
func (s demoStore) remove() error {
	if s.drop == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectLimit)
	defer cancel()
	if err := s.drop(ctx); err != nil {
		return fmt.Errorf("%s is left behind: %s", s.where, oneLine(err))
	}
	return nil
}

// called is what people call the store, and where they find it on a server.
func (s demoStore) called() string {
	if s.where == "" {
		return s.kind
	}
	return s.kind + " in " + s.where
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
