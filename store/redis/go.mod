module github.com/onceward/onceward/store/redis

go 1.26.0

require (
	github.com/onceward/onceward v0.1.0
	github.com/onceward/onceward/store/storetest v0.1.0
	github.com/redis/rueidis v1.0.77
)

require (
	github.com/dunglas/httpsfv v1.1.2 // indirect
	golang.org/x/sys v0.47.0 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
