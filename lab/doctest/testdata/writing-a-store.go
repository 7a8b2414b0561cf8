package page

import (
	"testing"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/storetest"
)

var open func(t testing.TB) store.Store
