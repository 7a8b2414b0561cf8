package page

import (
	"net/http"
	"time"

	"github.com/onceward/onceward"
)

var w http.ResponseWriter
