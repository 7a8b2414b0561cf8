package dynamodb_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/dynamodb"
)

// trying opens a store whose client sends each request so many times at most, with short pauses.
func trying(t testing.TB, where string, wire *servers.DynamoDBTransport, attempts int) *dynamodb.Store {
	t.Helper()
	u, err := url.Parse(where)
	must(t, err)
	client := ddb.New(ddb.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(u.Query().Get("endpoint")),
		Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
		HTTPClient:  &http.Client{Transport: wire},
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxAttempts, o.MaxBackoff, o.RateLimiter = attempts, 10*time.Millisecond, ratelimit.None
		}),
	})
	s, err := dynamodb.New(t.Context(), client, u.Host, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// anyOf matches operations by their names.
func anyOf(names ...string) func(string) bool {
	return func(operation string) bool {
		for _, name := range names {
			if operation == name {
				return true
			}
		}
		return false
	}
}

var writes = anyOf("PutItem", "DeleteItem", "TransactWriteItems")
