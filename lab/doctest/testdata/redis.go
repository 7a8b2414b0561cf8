package page

import (
	"context"
	"time"

	"github.com/onceward/onceward/store/redis"
)

var ctx context.Context
