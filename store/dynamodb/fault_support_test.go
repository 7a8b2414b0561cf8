package dynamodb_test

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
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

// loseCommit loses the next commit of a transaction, or the reply to it, and every request after it until restore is
// called.
func loseCommit(wire *servers.DynamoDBTransport, reply bool) (lost func(context.Context) error, restore func()) {
	fault := servers.DynamoDBNotSent
	if reply {
		fault = servers.DynamoDBReplyLost
	}
	var caught, restored atomic.Bool
	asked := make(chan struct{})
	note := sync.OnceFunc(func() { close(asked) })
	wire.Arm(fault, 1, func(operation string) bool {
		commits := operation == "TransactWriteItems"
		caught.Store(caught.Load() || commits)
		return commits
	})
	wire.Arm(servers.DynamoDBNotSent, math.MaxInt, func(string) bool {
		refused := caught.Load() && !restored.Load()
		if refused {
			note() // the commit was lost before the next request is made
		}
		return refused
	})
	lost = func(ctx context.Context) error {
		select {
		case <-asked:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return lost, func() { restored.Store(true) }
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
