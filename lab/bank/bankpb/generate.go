// Package bankpb is what protoc and its plugins write for bank.proto.
package bankpb

// protoc is of Debian's protobuf-compiler, protoc-gen-go of version 1.36.11, protoc-gen-go-grpc of version 1.2.0; -I leads to google/api/annotations.proto.
//go:generate protoc -I. -I$GOOGLEAPIS --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative --grpc-gateway_out=. --grpc-gateway_opt=paths=source_relative bank.proto
