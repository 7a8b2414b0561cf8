module github.com/onceward/onceward/store/mysql

go 1.26.0

require (
	github.com/go-sql-driver/mysql v1.8.1
	github.com/onceward/onceward v0.1.0
	github.com/onceward/onceward/store/storetest v0.1.0
)

require (
	filippo.io/edwards25519 v1.1.0 // indirect
	github.com/dunglas/httpsfv v1.1.2 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
