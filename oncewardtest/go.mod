module github.com/onceward/onceward/oncewardtest

go 1.26.0

require (
	github.com/ncruces/go-sqlite3 v0.35.6
	github.com/onceward/onceward v0.1.0
	github.com/onceward/onceward/store/sqlite v0.1.0
	github.com/onceward/onceward/store/storetest v0.1.0
)
require github.com/ncruces/wbt v1.0.0 // indirect
