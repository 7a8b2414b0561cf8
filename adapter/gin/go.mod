module github.com/onceward/onceward/adapter/gin

go 1.26.0

require (
	github.com/gin-gonic/gin v1.12.0
	github.com/onceward/onceward v0.1.0
)
