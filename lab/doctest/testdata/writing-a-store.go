package page

import (
	"context"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/storetest"
)

type (
	Checkpoint  = store.Checkpoint
	Claim       = store.Claim
	Completion  = store.Completion
	ID          = store.ID
	Record      = store.Record
	Reservation = store.Reservation
	Verdict     = store.Verdict
)

// The page shows the interface as it is: each implements the other.
var (
	_ store.Store = Store(nil)
	_ Store       = store.Store(nil)
)

var (
	before store.Record
	event  store.Event
	now    time.Time
	open   func(t testing.TB) store.Store
)
