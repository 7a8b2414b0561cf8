// Package paymentpb is the service for the tests of the adapters for gRPC and Connect.
package paymentpb

// protoc is that of Debian's protobuf-compiler, protoc-gen-go that of google.golang.org/protobuf/cmd/protoc-gen-go.
//go:generate protoc --go_out=. --go_opt=paths=source_relative payment.proto
