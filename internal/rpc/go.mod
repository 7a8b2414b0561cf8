module github.com/onceward/onceward/internal/rpc

go 1.26.0

require (
	github.com/onceward/onceward v0.1.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20240227224415-6ceb2ff114de
	google.golang.org/protobuf v1.33.0
)

require github.com/dunglas/httpsfv v1.1.2 // indirect
