package page

import (
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sealed"
)

var (
	inside        store.Store
	current, last []byte
)
