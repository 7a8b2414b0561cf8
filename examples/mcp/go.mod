module github.com/onceward/onceward/examples/mcp

go 1.26.0

require (
	github.com/modelcontextprotocol/go-sdk v1.8.0
	github.com/onceward/onceward v0.1.0
	github.com/onceward/onceward/adapter/mcp v0.1.0
	github.com/onceward/onceward/store/sqlite v0.1.0
)
