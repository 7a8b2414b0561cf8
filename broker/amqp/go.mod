module github.com/onceward/onceward/broker/amqp

go 1.26.0

require (
	github.com/onceward/onceward v0.1.0
	github.com/rabbitmq/amqp091-go v1.9.0
	go.uber.org/goleak v1.3.0
)

require github.com/dunglas/httpsfv v1.1.2 // indirect
