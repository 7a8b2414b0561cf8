package oncewardgrpc

import (
	"context"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/onceward/onceward"
)

// UnaryClientInterceptor adds a key and the time of the first sending to each call of a client, unless the outgoing
// metadata already has a key. Retries by the gRPC library, either by the retryPolicy of a service config or automatic,
// happen after interceptors, so they carry the same key. A loop around the call makes a new call each time: it has to
// set the key itself, once, with [metadata.AppendToOutgoingContext].
func UnaryClientInterceptor(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	sent, _ := metadata.FromOutgoingContext(ctx)
	if len(sent.Get(onceward.DefaultKeyHeader)) == 0 {
		ctx = metadata.AppendToOutgoingContext(ctx,
			onceward.DefaultKeyHeader, strings.TrimPrefix(onceward.NewInstance(), "urn:uuid:"),
			onceward.FirstSentHeader, time.Now().UTC().Format(http.TimeFormat))
	}
	return invoke(ctx, method, request, reply, conn, options...)
}

var _ grpc.UnaryClientInterceptor = UnaryClientInterceptor
