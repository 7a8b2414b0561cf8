module github.com/onceward/onceward/cmd/onceward

go 1.26.0

require (
	github.com/alecthomas/kong v1.16.1
	github.com/jackc/pgx/v5 v5.12.0
	github.com/ncruces/go-sqlite3 v0.35.6
	github.com/onceward/onceward v0.1.0
	github.com/onceward/onceward/examples v0.1.0
	github.com/onceward/onceward/store/postgres v0.1.0
	github.com/onceward/onceward/store/redis v0.1.0
	github.com/onceward/onceward/store/sqlite v0.1.0
	github.com/onceward/onceward/store/sealed v0.1.0
	github.com/onceward/onceward/storeurl v0.1.0
	github.com/prometheus/client_model v0.6.3
	github.com/prometheus/common v0.72.0
	github.com/redis/rueidis v1.0.79
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.49.0
)

require (
	github.com/dunglas/httpsfv v1.1.2 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/ncruces/go-sqlite3-wasm/v6 v6.3.35304 // indirect
	github.com/ncruces/julianday v1.0.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
