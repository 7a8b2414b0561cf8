package page

import (
	"time"

	"github.com/onceward/onceward"
)
