package page

import (
	"context"

	"github.com/onceward/onceward/store/mysql"
)

var ctx context.Context
