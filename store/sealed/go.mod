module github.com/onceward/onceward/store/sealed

go 1.26.0

require (
	github.com/klauspost/compress v1.17.11
	github.com/onceward/onceward v0.1.0
	github.com/onceward/onceward/store/storetest v0.1.0
)

require (
	github.com/dunglas/httpsfv v1.1.2 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
