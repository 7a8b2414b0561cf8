package page

import (
	"database/sql"

	"github.com/jackc/pgx/v5/pgxpool"

	sqldb "github.com/onceward/onceward/lab/feature/orm/sqlc/query"
	db "github.com/onceward/onceward/lab/feature/orm/sqlcpgx/query"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

var (
	pool  *pgxpool.Pool
	sqlDB *sql.DB
)
