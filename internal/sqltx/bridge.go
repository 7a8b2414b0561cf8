package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"reflect"

	"github.com/onceward/onceward/store"
)

// Bridge makes a *sql.Tx of a transaction that has already begun. It is a database/sql pool that opens no connections:
// it uses the connections that it is given, each for one transaction.
type Bridge struct{ db *sql.DB }

// NewBridge returns the bridge of a driver.
func NewBridge(d driver.Driver) *Bridge {
	db := sql.OpenDB(connector{d})
	db.SetMaxIdleConns(-1) // a connection is dropped with its transaction
	return &Bridge{db}
}

// Close closes the pool. On a nil bridge it does nothing.
func (b *Bridge) Close() {
	if b != nil {
		_ = b.db.Close()
	}
}

// begin returns a *sql.Tx for the transaction that a connection is in.
func (b *Bridge) begin(conn driver.Conn) (*sql.Tx, error) {
	return b.db.BeginTx(context.WithValue(context.Background(), connKey{}, conn), nil)
}

type connKey struct{}

// connector returns the connection that the context carries.
type connector struct{ driver driver.Driver }

// Connect implements [driver.Connector].
func (connector) Connect(ctx context.Context) (driver.Conn, error) {
	if conn, ok := ctx.Value(connKey{}).(driver.Conn); ok {
		return conn, nil
	}
	return nil, errors.New("onceward: there is no connection but the one of the transaction")
}

// Driver implements [driver.Connector].
func (c connector) Driver() driver.Driver { return c.driver }

// Begun is the part of a connection that is the same for all drivers: its transaction has begun, and the connection
// belongs to a pool of the store.
type Begun struct{}

// BeginTx implements [driver.ConnBeginTx]. It does nothing, because the transaction has begun.
func (Begun) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return ownedTx{}, nil }

// Begin implements [driver.Conn]. It does nothing either.
func (Begun) Begin() (driver.Tx, error) { return ownedTx{}, nil }

// Close leaves the connection to its pool.
func (Begun) Close() error { return nil }

// ownedTx is the driver's part of the *sql.Tx. It refuses to end the transaction.
type ownedTx struct{}

// Commit returns [store.ErrTxOwned].
func (ownedTx) Commit() error { return store.ErrTxOwned }

// Rollback returns [store.ErrTxOwned].
func (ownedTx) Rollback() error { return store.ErrTxOwned }

// Turn lets a handler use a connection until its transaction is over. [Gate] implements it.
type Turn interface {
	Enter() error
	Leave()
}

// ColumnTypes describes the columns of rows to database/sql, as far as the driver can.
type ColumnTypes struct {
	rows  driver.Rows
	turn  Turn
	names []string
}

// NewColumnTypes returns the column types of rows that were just opened.
func NewColumnTypes(rows driver.Rows, turn Turn) ColumnTypes {
	return ColumnTypes{rows, turn, rows.Columns()}
}

// Refresh reads the columns of the result set that the rows are in now. The caller has the turn.
func (c *ColumnTypes) Refresh() { c.names = c.rows.Columns() }

// Columns implements [driver.Rows].
func (c *ColumnTypes) Columns() []string { return c.names }

// ColumnTypeDatabaseTypeName implements [driver.RowsColumnTypeDatabaseTypeName].
func (c *ColumnTypes) ColumnTypeDatabaseTypeName(index int) (name string) {
	look(c, func(typed driver.RowsColumnTypeDatabaseTypeName) { name = typed.ColumnTypeDatabaseTypeName(index) })
	return name
}

// ColumnTypeNullable implements [driver.RowsColumnTypeNullable].
func (c *ColumnTypes) ColumnTypeNullable(index int) (nullable, ok bool) {
	look(c, func(typed driver.RowsColumnTypeNullable) { nullable, ok = typed.ColumnTypeNullable(index) })
	return nullable, ok
}

// ColumnTypePrecisionScale implements [driver.RowsColumnTypePrecisionScale].
func (c *ColumnTypes) ColumnTypePrecisionScale(index int) (precision, scale int64, ok bool) {
	look(c, func(typed driver.RowsColumnTypePrecisionScale) {
		precision, scale, ok = typed.ColumnTypePrecisionScale(index)
	})
	return precision, scale, ok
}

// ColumnTypeScanType implements [driver.RowsColumnTypeScanType].
func (c *ColumnTypes) ColumnTypeScanType(index int) reflect.Type {
	scan := reflect.TypeFor[any]()
	look(c, func(typed driver.RowsColumnTypeScanType) { scan = typed.ColumnTypeScanType(index) })
	return scan
}

// look calls do with the rows, if their driver implements T and the handler may still use the rows.
func look[T any](c *ColumnTypes, do func(T)) {
	typed, ok := c.rows.(T)
	if !ok || c.turn.Enter() != nil {
		return
	}
	defer c.turn.Leave()
	do(typed)
}
