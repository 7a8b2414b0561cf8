package page

import (
	"net/http"

	"github.com/onceward/onceward"
	oncewardgin "github.com/onceward/onceward/adapter/gin"
)
