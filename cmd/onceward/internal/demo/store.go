package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// demoStore is the store of one demo. On a server, each data directory has a schema of its own: the provider's ledger is in the
// directory, and the system must not know charges that the ledger does not.
type demoStore struct {
	url string
	// server and schema are set on PostgreSQL alone.
	server, schema string
}

// connectLimit is how long a server has to answer at the start.
const connectLimit = 10 * time.Second

func openStore(ctx context.Context, chosen string, dir directory, secret []byte) (demoStore, error) {
	if chosen == "" {
		return demoStore{url: "sqlite:" + dir.file("payments.db")}, nil
	}
	if dir.temporary && !strings.Contains(chosen, "://") {
		return demoStore{}, errors.New("--store with a file needs --dir: the provider's ledger has to last as long as the file")
	}
	if !strings.HasPrefix(chosen, "postgres://") && !strings.HasPrefix(chosen, "postgresql://") {
		return demoStore{url: chosen}, nil
	}
	sum := sha256.Sum256(secret)
	s := demoStore{server: chosen, schema: "onceward_demo_" + hex.EncodeToString(sum[:6])}
	parsed, err := url.Parse(chosen)
	if err != nil {
		return s, errors.New("--store is not a URL such as postgres://user@host/database")
	}
	query := parsed.Query()
	query.Set("search_path", s.schema)
	parsed.RawQuery = query.Encode()
	s.url = parsed.String()
	if err := s.execute(ctx, "CREATE SCHEMA IF NOT EXISTS "+s.schema); err != nil {
		return s, fmt.Errorf("the store does not answer: %w: check --store", err)
	}
	return s, nil
}

// remove removes the schema. A file goes with its directory.
func (s demoStore) remove() error {
	if s.schema == "" {
		return nil
	}
	return s.execute(context.Background(), "DROP SCHEMA "+s.schema+" CASCADE")
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
