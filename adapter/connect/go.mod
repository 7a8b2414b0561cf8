module github.com/onceward/onceward/adapter/connect

go 1.26.0

require (
	connectrpc.com/connect v1.20.0
	github.com/onceward/onceward v0.1.0
	github.com/onceward/onceward/internal/rpc v0.1.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20240227224415-6ceb2ff114de
	google.golang.org/protobuf v1.36.11
)

require github.com/dunglas/httpsfv v1.1.2 // indirect
