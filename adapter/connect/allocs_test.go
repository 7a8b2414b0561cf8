package oncewardconnect_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/racing"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
)

// TestAllocations: what protection allocates over the bare handler is within 4 of what it does over net/http, which is
// 20 for a first call and 8 for a replay, counted in the same way on the same store. The race detector adds some of
// its own.
func TestAllocations(t *testing.T) {
	const runs = 1000
	body, err := proto.Marshal(&paymentpb.Payment{Account: "a", Amount: 7})
	if err != nil {
		t.Fatal(err)
	}
	bare := connect.NewUnaryHandler(create, pay)
	protected := connect.NewUnaryHandler(create, pay, connect.WithInterceptors(
		protection(t, onceward.Reserved(onceward.FailureStore))))
	keys := make([]string, runs+2)
	for i := range keys {
		keys[i] = fmt.Sprint("key-", i)
	}
	allocations := func(h http.Handler, next func() string) float64 {
		return testing.AllocsPerRun(runs, func() {
			request, err := http.NewRequest(http.MethodPost, create, io.NopCloser(bytes.NewReader(body)))
			if err != nil {
				t.Error(err)
			}
			request.Header = http.Header{
				"Content-Type": {"application/proto"}, "Idempotency-Key": {next()},
			}
			h.ServeHTTP(&silent{header: make(http.Header)}, request)
		})
	}
	same := func() string { return keys[0] }
	i := 0
	each := func() string { i++; return keys[i-1] }
	without := allocations(bare, same)
	for _, test := range []struct {
		what string
		got  float64
		most float64
	}{
		{"first", allocations(protected, each) - without, 20 + 4},
		{"replay", allocations(protected, same) - without, 8 + 4},
	} {
		t.Logf("%s: %v allocations over %v", test.what, test.got, without)
		if test.got > test.most && !racing.Enabled {
			t.Errorf("%s: %v allocations, and %v are enough", test.what, test.got, test.most)
		}
	}
}

// silent is a response writer that allocates nothing of its own.
type silent struct{ header http.Header }

func (w *silent) Header() http.Header         { return w.header }
func (w *silent) Write(b []byte) (int, error) { return len(b), nil }
func (w *silent) WriteHeader(status int) {
	if status != http.StatusOK {
		panic(status)
	}
}
