package page

import (
	"context"
	"os"

	"github.com/onceward/onceward/store/postgres"
)

var ctx context.Context
