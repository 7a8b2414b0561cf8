package page

import (
	"io"
	"time"

	"github.com/onceward/onceward/client"
)

var (
	url  string
	body io.Reader
)
