module github.com/onceward/onceward/adapter/fiber

go 1.26.0

require (
	github.com/gofiber/fiber/v3 v3.1.0
	github.com/onceward/onceward v0.1.0
	github.com/valyala/fasthttp v1.69.0
)
