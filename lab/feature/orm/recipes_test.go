package orm

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net/http"

	"entgo.io/ent/dialect"
	"github.com/ncruces/go-sqlite3/gormlite"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"github.com/uptrace/bun/schema"
	gormmysql "gorm.io/driver/mysql"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onceward/onceward"
	viabun "github.com/onceward/onceward/lab/feature/orm/bun"
	viaent "github.com/onceward/onceward/lab/feature/orm/ent"
	"github.com/onceward/onceward/lab/feature/orm/ent/ent"
	viagorm "github.com/onceward/onceward/lab/feature/orm/gorm"
	viasqlc "github.com/onceward/onceward/lab/feature/orm/sqlc"
	"github.com/onceward/onceward/lab/feature/orm/sqlc/query"
	viasqlcpgx "github.com/onceward/onceward/lab/feature/orm/sqlcpgx"
	pgxquery "github.com/onceward/onceward/lab/feature/orm/sqlcpgx/query"
	"github.com/onceward/onceward/store/postgres"
)

// recipe is a directory here, and what it makes for each database.
type recipe struct {
	dir              string
	sqlite, postgres func() orm
	mysql            func() orm // nil: no dialect, or $1
}

// orm is what a recipe gives to the tests.
type orm struct {
	pay     http.Handler
	write   func(ctx context.Context, id string) error // a payment of 7
	end     func(ctx context.Context) error            // as the ORM would end a transaction by itself
	refusal string                                     // in the error of end, if that is not ErrTxOwned
	raw     func(ctx context.Context, statement string) error
}

var recipes = []recipe{
	{
		"gorm",
		func() orm { return onGORM(gormlite.OpenDB(closed)) },
		func() orm { return onGORM(gormpostgres.New(gormpostgres.Config{Conn: closed})) },
		func() orm {
			return onGORM(gormmysql.New(gormmysql.Config{Conn: closed, SkipInitializeWithVersion: true}))
		},
	},
	{
		"bun",
		func() orm { return onBun(sqlitedialect.New()) },
		func() orm { return onBun(pgdialect.New()) },
		func() orm { return onBun(mysqldialect.New()) },
	},
	{
		"ent",
		func() orm { return onEnt(dialect.SQLite) },
		func() orm { return onEnt(dialect.Postgres) },
		func() orm { return onEnt(dialect.MySQL) },
	},
	{"sqlc", onSQLC, onSQLC, nil},
	{"sqlcpgx", nil, onPgx, nil},
}

// closed has no connections: what goes past the transaction of the guard fails.
var closed = sql.OpenDB(noConnections{})

type noConnections struct{}

func (noConnections) Connect(context.Context) (driver.Conn, error) {
	return nil, errors.New("past the transaction of the guard")
}

func (noConnections) Driver() driver.Driver { return nil }

func onGORM(dialector gorm.Dialector) orm {
	db, err := gorm.Open(dialector, &gorm.Config{DisableAutomaticPing: true, PrepareStmt: true, Logger: logger.Discard})
	if err != nil {
		panic(err)
	}
	return orm{
		pay: viagorm.Pay(db),
		write: func(ctx context.Context, id string) error {
			return viagorm.OnTx(ctx, db).Create(&viagorm.Payment{ID: id, Amount: 7}).Error
		},
		end: func(ctx context.Context) error { return viagorm.OnTx(ctx, db).Commit().Error },
		raw: func(ctx context.Context, statement string) error { return viagorm.OnTx(ctx, db).Exec(statement).Error },
	}
}

func onBun(dialect schema.Dialect) orm {
	db := viabun.NewDB(dialect)
	return orm{
		pay: viabun.Pay(db),
		write: func(ctx context.Context, id string) error {
			_, err := db.NewInsert().Model(&viabun.Payment{ID: id, Amount: 7}).Exec(ctx)
			return err
		},
		end: func(ctx context.Context) error {
			_, err := db.BeginTx(ctx, nil)
			return err
		},
		refusal: "for the transaction of the guard alone",
		raw: func(ctx context.Context, statement string) error {
			_, err := db.NewRaw(statement).Exec(ctx)
			return err
		},
	}
}

func onEnt(name string) orm {
	return orm{
		pay: viaent.Pay(name),
		write: func(ctx context.Context, id string) error {
			client := ent.NewClient(ent.Driver(viaent.OnTx(ctx, name)))
			if err := client.Payment.Create().SetID(id).SetAmount(6).Exec(ctx); err != nil {
				return err
			}
			return client.Payment.UpdateOneID(id).SetAmount(7).Exec(ctx) // for which ent begins a transaction
		},
		end:     func(ctx context.Context) error { return ent.NewClient(ent.Driver(viaent.OnTx(ctx, name))).Close() },
		refusal: "the guard ends its transaction itself",
		raw: func(ctx context.Context, statement string) error {
			return viaent.OnTx(ctx, name).Exec(ctx, statement, []any{}, nil)
		},
	}
}

func onSQLC() orm {
	return orm{
		pay: http.HandlerFunc(viasqlc.Pay),
		write: func(ctx context.Context, id string) error {
			return query.New(onceward.Tx(ctx)).CreatePayment(ctx, query.CreatePaymentParams{ID: id, Amount: 7})
		},
		end: func(ctx context.Context) error { return onceward.Tx(ctx).Commit() },
		raw: func(ctx context.Context, statement string) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, statement)
			return err
		},
	}
}

func onPgx() orm {
	return orm{
		pay: http.HandlerFunc(viasqlcpgx.Pay),
		write: func(ctx context.Context, id string) error {
			return pgxquery.New(postgres.Tx(ctx)).CreatePayment(ctx, pgxquery.CreatePaymentParams{ID: id, Amount: 7})
		},
		end: func(ctx context.Context) error { return postgres.Tx(ctx).Commit(ctx) },
		raw: func(ctx context.Context, statement string) error {
			_, err := postgres.Tx(ctx).Exec(ctx, statement)
			return err
		},
	}
}
