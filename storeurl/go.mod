module github.com/onceward/onceward/storeurl

go 1.26.0

require (
	github.com/jackc/pgx/v5 v5.8.0
	github.com/onceward/onceward v0.1.0
	github.com/onceward/onceward/store/mysql v0.1.0
	github.com/onceward/onceward/store/postgres v0.1.0
	github.com/onceward/onceward/store/redis v0.1.0
	github.com/onceward/onceward/store/sqlite v0.1.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/dunglas/httpsfv v1.1.2 // indirect
	github.com/go-sql-driver/mysql v1.10.1 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.2 // indirect
	github.com/ncruces/go-sqlite3 v0.35.6 // indirect
	github.com/ncruces/go-sqlite3-wasm/v6 v6.3.35304 // indirect
	github.com/ncruces/julianday v1.0.0 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)
