module github.com/onceward/onceward/internal/rpc

go 1.26.0

require (
	github.com/onceward/onceward v0.1.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261019180522-ce908d29299b
	google.golang.org/protobuf v1.36.12
)

require github.com/dunglas/httpsfv v1.1.2 // indirect
