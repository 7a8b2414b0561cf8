module github.com/onceward/onceward/demo

go 1.26.0

require (
	github.com/onceward/onceward v0.1.0
	github.com/onceward/onceward/examples v0.1.0
	github.com/onceward/onceward/store/sqlite v0.1.0
	golang.org/x/sys v0.49.0
)

require (
	github.com/dunglas/httpsfv v1.1.2 // indirect
	github.com/ncruces/go-sqlite3 v0.35.6 // indirect
	github.com/ncruces/go-sqlite3-wasm/v6 v6.3.35304 // indirect
	github.com/ncruces/julianday v1.0.0 // indirect
)
