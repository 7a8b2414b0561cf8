module github.com/onceward/onceward/store/storetest

go 1.26.0

require (
	github.com/onceward/onceward v0.1.0
	pgregory.net/rapid v1.3.0
)

require github.com/dunglas/httpsfv v1.1.2 // indirect
