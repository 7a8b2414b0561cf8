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

// UnaryClientInterceptor gives each call of a client a key of its own, and the time of its first sending, unless the
// outgoing metadata has a key already. The retries of the library, by the retryPolicy of a service config or by itself,
// come after interceptors: they carry the same key. A loop around the call does not: it makes a new call each time, and
// has to set the key itself, once, with [metadata.AppendToOutgoingContext].
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
