package dynamodb_test

import (
	"testing"

	"github.com/onceward/onceward/store/storetest"
)

func BenchmarkStore(b *testing.B) {
	storetest.Bench(b, storetest.Harness{
		Features: features,
		Open:     func(t testing.TB) storetest.Instance { return instance(t) },
	})
}
