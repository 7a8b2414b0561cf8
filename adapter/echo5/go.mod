module github.com/onceward/onceward/adapter/echo5

go 1.26.0

require (
	github.com/labstack/echo/v5 v5.0.0
	github.com/onceward/onceward v0.1.0
)

require github.com/dunglas/httpsfv v1.1.2 // indirect
