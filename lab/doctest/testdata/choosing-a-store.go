package page

import (
	"context"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/breaker"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/sealed"
	"github.com/onceward/onceward/store/tiered"
	"github.com/onceward/onceward/storeurl"
)
