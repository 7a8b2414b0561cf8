package page

import (
	"context"
	"io"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sealed"
)
