package rehearsal

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/store/sqlite"
)

// connectLimit is the time in which a server must answer at the start.
const connectLimit = 10 * time.Second

// prepare creates what the store needs on its server. After an error there is no store, and nothing to remove.
func (w *world) prepare(ctx context.Context, secret []byte) (Place, error) {
	if w.config.Store == "" {
		return Place{Kind: "SQLite"}, nil
	}
	if w.program.Servers == nil {
		return Place{}, errors.New("this program has an SQLite file as its store: take `onceward demo` for others")
	}
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	sum := sha256.Sum256(secret)
	place, err := w.program.Servers.Prepare(ctx, w.config.Store, hex.EncodeToString(sum[:6]), !w.dir.temporary)
	if err != nil {
		return Place{}, errors.New(oneLine(err))
	}
	return place, nil
}

// openStore opens the store in this process, and sets it in the configuration of the system.
func (n *node) openStore(ctx context.Context, c nodeConfig, config *payments.Config) (io.Closer, error) {
	if c.File == "" {
		return n.program.Servers.Open(ctx, c.Place, config)
	}
	db, err := sqlite.Open(ctx, c.File)
	if err != nil {
		return nil, err
	}
	config.Database = database{db}
	return db, nil
}

// database is SQLite as a [payments.Database].
type database struct{ *sqlite.Store }

// Bind implements [payments.Database]: SQLite takes the parameters unchanged.
func (database) Bind(statement string) string { return statement }

// Define implements [payments.Database].
func (d database) Define(ctx context.Context, statements ...string) error {
	return d.InTx(ctx, func(ctx context.Context) error {
		for _, statement := range statements {
			if _, err := onceward.Tx(ctx).ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// HasColumn implements [payments.Database].
func (database) HasColumn(ctx context.Context, tx *sql.Tx, table, column string) (bool, error) {
	var n int
	err := tx.QueryRowContext(ctx, `SELECT count(*) FROM pragma_table_info($1) WHERE name = $2`, table, column).Scan(&n)
	return n > 0, err
}

// Reads implements [payments.Database].
func (d database) Reads() *sql.DB { return d.DB() }

// oneLine joins the lines of an error, without repeated lines: the
// driver tries a server in several ways, which mostly fail alike.
func oneLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(parts, line) {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, " ")
}

// remove removes what was created on a server. A file is removed with its directory.
func (p Place) remove() error {
	if p.Drop == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectLimit)
	defer cancel()
	if err := p.Drop(ctx); err != nil {
		return fmt.Errorf("%s is left behind: %s", p.Where, oneLine(err))
	}
	return nil
}

// called returns the name of the store for people, with its place on a server.
func (p Place) called() string {
	if p.Where == "" {
		return p.Kind
	}
	return p.Kind + " in " + p.Where
}

// withoutPassword returns a URL that can be shown, and reports whether something was left out.
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
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes a plus sign literally
	return parsed.String(), true
}
