module github.com/onceward/onceward/adapter/echo4

go 1.26.0

require (
	github.com/labstack/echo/v4 v4.16.0
	github.com/onceward/onceward v0.1.0
)
