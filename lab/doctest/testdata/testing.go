package page

import (
	"context"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/shop"
	"github.com/onceward/onceward/oncewardtest"
)
