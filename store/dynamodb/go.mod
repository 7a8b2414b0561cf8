module github.com/onceward/onceward/store/dynamodb

go 1.26.0

require (
	github.com/aws/aws-sdk-go-v2 v1.47.5
	github.com/aws/aws-sdk-go-v2/config v1.33.13
	github.com/aws/aws-sdk-go-v2/credentials v1.20.13
	github.com/aws/aws-sdk-go-v2/service/dynamodb v1.72.3
	github.com/aws/smithy-go v1.28.7
	github.com/onceward/onceward v0.1.0
	github.com/onceward/onceward/store/storetest v0.1.0
)
