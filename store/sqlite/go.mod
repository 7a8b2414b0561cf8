module github.com/onceward/onceward/store/sqlite

go 1.26.0

require (
	github.com/ncruces/go-sqlite3 v0.35.6
	github.com/onceward/onceward v0.1.0
	github.com/onceward/onceward/store/storetest v0.1.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/dunglas/httpsfv v1.1.2 // indirect
	github.com/ncruces/go-sqlite3-wasm/v6 v6.3.35304 // indirect
	github.com/ncruces/julianday v1.0.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
