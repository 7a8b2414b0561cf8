package mysql_test

import (
	"bytes"
	"context"
	"database/sql"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/onceward/onceward/store/mysql"
)

// brittle is a connection that is reset when the reply to a COMMIT has been read, if it is armed.
type brittle struct {
	net.Conn
	armed     *atomic.Bool
	committed bool
}

func (b *brittle) Write(p []byte) (int, error) {
	if b.committed {
		return 0, syscall.ECONNRESET
	}
	b.committed = b.armed.Load() && bytes.HasSuffix(p, []byte("COMMIT"))
	return b.Conn.Write(p)
}

// TestConnectionLostBehindCommit: that a connection of the application is lost when it is to be given back does not
// undo what was committed, and is not told so.
func TestConnectionLostBehindCommit(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	exec(t, openAdmin(t, url), `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	configs, err := mysql.DriverConfigs(url)
	must(t, err)
	var armed atomic.Bool
	configs[0].DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &brittle{Conn: conn, armed: &armed}, err
	}
	connector, err := driver.NewConnector(configs[0])
	must(t, err)
	db := sql.OpenDB(connector)
	defer db.Close()
	s, err := mysql.New(t.Context(), db, url, quiet)
	must(t, err)
	defer s.Close()
	armed.Store(true)
	err = s.InTx(t.Context(), func(ctx context.Context) error { return insert(ctx, "committed") })
	rows := number(t, openAdmin(t, url), `SELECT COUNT(*) FROM business`)
	if rows != 1 || err != nil {
		t.Errorf("I4: %d rows are there, and the caller was told %v", rows, err)
	}
	armed.Store(false)
	must(t, s.InTx(t.Context(), func(ctx context.Context) error { return insert(ctx, "next") }))
}
