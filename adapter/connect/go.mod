module github.com/onceward/onceward/adapter/connect

go 1.26.0

require (
	connectrpc.com/connect v1.21.1
	github.com/onceward/onceward v0.1.0
	github.com/onceward/onceward/internal/rpc v0.1.0
	google.golang.org/protobuf v1.36.12
)
